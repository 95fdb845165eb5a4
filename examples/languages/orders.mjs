// npm install pg

/** Mark an order as paid and enqueue its invoice, both in the caller's transaction. */
export async function pay(client, orderId) {
  await client.query("UPDATE orders SET status = 'PAID' WHERE id = $1", [orderId])
  const { rows } = await client.query(
    "SELECT id, new FROM cronjobs_enqueue($1, jsonb_build_object('invoice_id', $2::bigint), idempotency_key => $3)",
    ['billing.send_invoice', orderId, `invoice:${orderId}`],
  )
  return rows[0] // { id: '17', new: true }: pg returns a bigint as text, because a number may not hold it
}

/** Enqueue a reminder for a given time, by a plain INSERT. Return undefined if there is one already. */
export async function remind(client, orderId, at, details) {
  const { rows } = await client.query(
    `INSERT INTO cronjobs_jobs (job_type, payload, run_at, idempotency_key) VALUES ($1, $2, $3, $4)
     ON CONFLICT (idempotency_key) DO NOTHING RETURNING id`,
    ['billing.remind', details, at, `reminder:${orderId}`],
  )
  return rows[0]?.id
}

/** Run work(client) in a transaction, so that all of its changes are committed or none. */
export async function transaction(pool, work) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const result = await work(client)
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}
