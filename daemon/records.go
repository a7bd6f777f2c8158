package daemon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
)

// record is an agent's row.
type record struct {
	id      uuid.UUID
	name    string
	image   string
	digest  string
	model   string
	created time.Time
	started time.Time // zero where it never ran
	// wantRunning is what the operator last asked for.
	wantRunning bool
	state       state
	tokenHash   []byte
	// policy says whether it is started again after it ended.
	policy restartPolicy
}

// state is an agent's status as it is told and stored.
type state struct {
	status  executor.Status
	reason  executor.FailureReason
	message string
	restarts
}

// restarts is how far an agent's restarts have come.
type restarts struct {
	// attempts counts the restarts since the agent was last ready for a minute, or started by the
	// operator, with the one that is due.
	attempts int
	// nextMs is when the next one is due, in unix milliseconds; 0 where none is.
	nextMs int64
	// last is why the agent last failed, "reason: message"; empty where it never has.
	last string
}

func wanted(running bool) string {
	if running {
		return "running"
	}
	return "stopped"
}

func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMilliseconds(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func (d *database) insertAgent(ctx context.Context, r record) error {
	_, err := d.exec(ctx, `INSERT INTO agents (id, name, image, digest, model, created_ms, started_ms, wanted, status, reason, message, token_hash, restart)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.id.String(), r.name, r.image, r.digest, r.model, milliseconds(r.created), milliseconds(r.started), wanted(r.wantRunning),
		r.state.status.String(), string(r.state.reason), r.state.message, notNil(r.tokenHash), r.policy.String())
	return err
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// setState records the latest status and the time of the last start. An agent that is being removed
// stays so.
func (d *database) setState(ctx context.Context, id uuid.UUID, s state, started time.Time) error {
	return d.updateState(ctx, id, s, started, ` AND status <> 'removing'`)
}

// forceState is setState for a removal that failed.
func (d *database) forceState(ctx context.Context, id uuid.UUID, s state, started time.Time) error {
	return d.updateState(ctx, id, s, started, "")
}

func (d *database) updateState(ctx context.Context, id uuid.UUID, s state, started time.Time, unless string) error {
	_, err := d.exec(ctx, `UPDATE agents SET status = ?, reason = ?, message = ?, started_ms = ?, attempts = ?, next_ms = ?, last_failure = ? WHERE id = ?`+unless,
		s.status.String(), string(s.reason), s.message, milliseconds(started), s.attempts, s.nextMs, s.last, id.String())
	return err
}

// setToken records the hash of the gateway token that the next runtime of this agent is given.
func (d *database) setToken(ctx context.Context, id uuid.UUID, hash []byte) error {
	_, err := d.exec(ctx, `UPDATE agents SET token_hash = ? WHERE id = ?`, notNil(hash), id.String())
	return err
}

func (d *database) setWanted(ctx context.Context, id uuid.UUID, running bool) error {
	_, err := d.exec(ctx, `UPDATE agents SET wanted = ? WHERE id = ?`, wanted(running), id.String())
	return err
}

func (d *database) deleteAgent(ctx context.Context, id uuid.UUID) error {
	_, err := d.exec(ctx, `DELETE FROM agents WHERE id = ?`, id.String())
	return err
}

// agents returns every row, oldest first. A row that can't be read is an error: it would otherwise
// be an agent that nobody supervises.
func (d *database) agents(ctx context.Context) ([]record, error) {
	rows, err := d.db.QueryContext(ctx, `SELECT id, name, image, digest, model, created_ms, started_ms, wanted, status, reason, message, token_hash,
		restart, attempts, next_ms, last_failure FROM agents ORDER BY created_ms, id`)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	defer rows.Close()
	var out []record
	for rows.Next() {
		var r record
		var id, want, st, reason, policy string
		var created, started int64
		if err := rows.Scan(&id, &r.name, &r.image, &r.digest, &r.model, &created, &started, &want, &st, &reason, &r.state.message, &r.tokenHash,
			&policy, &r.state.attempts, &r.state.nextMs, &r.state.last); err != nil {
			return nil, fmt.Errorf("database: agent: %w", err)
		}
		if r.id, err = uuid.Parse(id); err != nil {
			return nil, fmt.Errorf("database: agent %q: %w", id, err)
		}
		if r.state.status, err = executor.ParseStatus(st); err != nil {
			return nil, fmt.Errorf("database: agent %s: %w", id, err)
		}
		if r.policy, err = parseRestart(policy); err != nil {
			return nil, fmt.Errorf("database: agent %s: %w", id, err)
		}
		r.state.reason = executor.FailureReason(reason)
		r.created, r.started, r.wantRunning = fromMilliseconds(created), fromMilliseconds(started), want == "running"
		out = append(out, r)
	}
	return out, rows.Err()
}

// stamp is what the program looked like when it was stored as an image; empty where it never was.
func (d *database) stamp(ctx context.Context, program string) (string, error) {
	var stamp string
	err := d.db.QueryRowContext(ctx, `SELECT stamp FROM programs WHERE name = ?`, program).Scan(&stamp)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("database: %w", err)
	}
	return stamp, nil
}

func (d *database) setStamp(ctx context.Context, program, stamp string) error {
	_, err := d.exec(ctx, `INSERT INTO programs (name, stamp) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET stamp = excluded.stamp`, program, stamp)
	return err
}
