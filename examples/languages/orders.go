// Package orders enqueues jobs beside its own rows, through any PostgreSQL driver of database/sql.
package orders

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Pay marks an order as paid and enqueues its invoice, both in the caller's transaction; nil: a full queue dropped it.
func Pay(ctx context.Context, tx *sql.Tx, orderID int64) (jobID *int64, isNew bool, err error) {
	if _, err = tx.ExecContext(ctx, "UPDATE orders SET status = 'PAID' WHERE id = $1", orderID); err != nil {
		return
	}
	payload, err := json.Marshal(map[string]any{"invoice_id": orderID})
	if err != nil {
		return
	}
	// As a string: lib/pq sends []byte as bytea.
	err = tx.QueryRowContext(ctx,
		"SELECT id, new FROM cronjobs_enqueue($1, $2, idempotency_key => $3)",
		"billing.send_invoice", string(payload), fmt.Sprintf("invoice:%d", orderID),
	).Scan(&jobID, &isNew)
	return
}

// Remind enqueues a reminder for a time of its own, by plain INSERT; 0: there is one already.
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
