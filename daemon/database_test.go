package daemon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
)

// Invariant: what exec acknowledged is there after the next open; a database of a newer version is
// refused and not changed. Worst inputs: a schema from the future, a write while closing, a
// statement that fails inside a shared commit.

func testDatabase(t *testing.T) (*database, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "otters.db")
	db, err := openDatabase(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.close() })
	return db, path
}

func testRecord(name string) record {
	return record{
		id: uuid.New(), name: name, image: "a:latest", digest: "sha256:00", model: "offline/otter",
		created: time.UnixMilli(1700000000123), wantRunning: true, state: state{status: executor.StatusPulling}, tokenHash: []byte{1, 2},
	}
}

func TestWhatWasAcknowledgedSurvivesReopening(t *testing.T) {
	t.Parallel()
	db, path := testDatabase(t)
	r := testRecord("one")
	if err := db.insertAgent(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	failed := state{status: executor.StatusFailed, reason: executor.FailureCrashed, message: "exit code 1"}
	if err := db.setState(t.Context(), r.id, failed, time.UnixMilli(1700000001000)); err != nil {
		t.Fatal(err)
	}
	if err := db.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openDatabase(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	got, err := again.agents(t.Context())
	if err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	if g := got[0]; g.id != r.id || g.name != "one" || g.state != failed || !g.wantRunning || g.started.UnixMilli() != 1700000001000 || string(g.tokenHash) != "\x01\x02" {
		t.Fatalf("got %+v", g)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestA10NewerSchemaIsRefusedAndLeft(t *testing.T) {
	t.Parallel()
	db, path := testDatabase(t)
	if err := db.close(); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Exec(fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1)); err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openDatabase(t.Context(), path); !errors.Is(err, ErrNewerSchema) {
		t.Fatalf("got %v, want ErrNewerSchema", err)
	}
	raw, _ = sql.Open("sqlite", path)
	defer raw.Close()
	if v, err := schemaVersion(t.Context(), raw); err != nil || v != len(migrations)+1 {
		t.Fatalf("schema is %d, %v; want it untouched", v, err)
	}
}

func TestAStatementThatFailsUndoesItselfAlone(t *testing.T) {
	t.Parallel()
	db, _ := testDatabase(t)
	if err := db.insertAgent(t.Context(), testRecord("taken")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		all.Go(func() {
			name := fmt.Sprintf("n%d", i)
			if i%2 == 1 {
				name = "taken"
			}
			errs[i] = db.insertAgent(t.Context(), testRecord(name))
		})
	}
	all.Wait()
	for i, err := range errs {
		if (err != nil) != (i%2 == 1) {
			t.Errorf("insert %d: %v", i, err)
		}
	}
	if got, err := db.agents(t.Context()); err != nil || len(got) != 11 {
		t.Fatalf("%d agents, %v; want 11", len(got), err)
	}
}

func TestWritesWhileClosingAreEitherThereOrRefused(t *testing.T) {
	t.Parallel()
	db, path := testDatabase(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	acknowledged := map[uuid.UUID]bool{}
	for i := range 50 {
		all.Go(func() {
			r := testRecord(fmt.Sprint("n", i))
			if err := db.insertAgent(context.Background(), r); err == nil {
				mu.Lock()
				acknowledged[r.id] = true
				mu.Unlock()
			} else if !errors.Is(err, errClosed) {
				t.Errorf("got %v, want errClosed", err)
			}
		})
	}
	all.Go(func() { _ = db.close() })
	all.Wait()
	again, err := openDatabase(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	got, err := again.agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got {
		delete(acknowledged, r.id)
	}
	if len(acknowledged) > 0 {
		t.Fatalf("%d acknowledged writes are lost", len(acknowledged))
	}
}

func TestARemovalIsNotOverwrittenByALateStatus(t *testing.T) {
	t.Parallel()
	db, _ := testDatabase(t)
	r := testRecord("one")
	stopped := state{status: executor.StatusStopped}
	steps := []error{
		db.insertAgent(t.Context(), r),
		db.setState(t.Context(), r.id, state{status: executor.StatusRemoving}, time.Time{}),
		db.setState(t.Context(), r.id, stopped, time.Time{}),
	}
	got, err := db.agents(t.Context())
	if err := errors.Join(append(steps, err)...); err != nil || got[0].state.status != executor.StatusRemoving {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := db.forceState(t.Context(), r.id, stopped, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got, _ = db.agents(t.Context()); got[0].state != stopped {
		t.Fatalf("got %+v, want the failed removal taken back", got[0].state)
	}
}
