<?php

/** Mark an order as paid and enqueue its invoice, both in the caller's transaction ($db->beginTransaction()). */
function pay(PDO $db, int $orderId): array
{
    $db->prepare("UPDATE orders SET status = 'PAID' WHERE id = ?")->execute([$orderId]);
    $job = $db->prepare('SELECT id, new FROM cronjobs_enqueue(?, ?, idempotency_key => ?)');
    $job->execute(['billing.send_invoice', json_encode(['invoice_id' => $orderId], JSON_THROW_ON_ERROR), "invoice:$orderId"]);
    return $job->fetch(PDO::FETCH_ASSOC);  // ['id' => 17, 'new' => true]
}

/** Enqueue a reminder for a given time, by a plain INSERT. Return null if there is one already. */
function remind(PDO $db, int $orderId, DateTimeInterface $at): ?int
{
    $job = $db->prepare(
        'INSERT INTO cronjobs_jobs (job_type, payload, run_at, idempotency_key) VALUES (?, ?, ?, ?)
         ON CONFLICT (idempotency_key) DO NOTHING RETURNING id'
    );
    // For a payload without keys, write '{}', because json_encode([]) returns "[]".
    $payload = json_encode(['invoice_id' => $orderId], JSON_THROW_ON_ERROR);
    $job->execute(['billing.remind', $payload, $at->format(DATE_RFC3339_EXTENDED), "reminder:$orderId"]);
    return $job->fetchColumn() ?: null;
}
