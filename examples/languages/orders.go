// Package orders enqueues jobs in the transaction that writes its own rows, with any PostgreSQL driver of database/sql.
package orders

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Pay marks an order as paid and enqueues its invoice, both in the caller's transaction. If a full queue dropped the
// job, jobID is nil.
func Pay(ctx context.Context, tx *sql.Tx, orderID int64) (jobID *int64, isNew bool, err error) {
	if _, err = tx.ExecContext(ctx, "UPDATE orders SET status = 'PAID' WHERE id = $1", orderID); err != nil {
		return
	}
	payload, err := json.Marshal(map[string]any{"invoice_id": orderID})
	if err != nil {
		return
	}
	// Pass the payload as a string, because lib/pq sends []byte as bytea.
	err = tx.QueryRowContext(ctx,
		"SELECT id, new FROM cronjobs_enqueue($1, $2, idempotency_key => $3)",
		"billing.send_invoice", string(payload), fmt.Sprintf("invoice:%d", orderID),
	).Scan(&jobID, &isNew)
	return
}

// Remind enqueues a reminder for a given time, by a plain INSERT. If there is one already, jobID is 0.
func Remind(ctx context.Context, tx *sql.Tx, orderID int64, at time.Time) (jobID int64, err error) {
	payload, err := json.Marshal(map[string]any{"invoice_id": orderID})
	if err != nil {
		return
	}
	err = tx.QueryRowContext(ctx,
		`INSERT INTO cronjobs_jobs (job_type, payload, run_at, idempotency_key) VALUES ($1, $2, $3, $4)
		 ON CONFLICT (idempotency_key) DO NOTHING RETURNING id`,
		"billing.remind", string(payload), at, fmt.Sprintf("reminder:%d", orderID),
	).Scan(&jobID)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return
}
