require "json"
require "pg"
require "time"

# Mark an order as paid and enqueue its invoice, both in the caller's transaction (db.transaction { … }).
def pay(db, order_id)
  db.exec_params("UPDATE orders SET status = 'PAID' WHERE id = $1", [order_id])
  db.exec_params(
    "SELECT id, new FROM cronjobs_enqueue($1, $2, idempotency_key => $3)",
    ["billing.send_invoice", JSON.generate(invoice_id: order_id), "invoice:#{order_id}"]
  ).first # {"id" => "17", "new" => "t"} (strings, if the connection has no type map)
end

# Enqueue a reminder for a given time, by a plain INSERT. Return nil if there is one already.
def remind(db, order_id, at)
  made = db.exec_params(<<~SQL, ["billing.remind", JSON.generate(invoice_id: order_id), at.iso8601(6), "reminder:#{order_id}"])
    INSERT INTO cronjobs_jobs (job_type, payload, run_at, idempotency_key) VALUES ($1, $2, $3, $4)
    ON CONFLICT (idempotency_key) DO NOTHING RETURNING id
  SQL
  made.first&.fetch("id")
end
