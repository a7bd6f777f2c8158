package main

import (
	"testing"
	"time"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func TestLogsAskForWhatTheFlagsSay(t *testing.T) {
	t.Parallel()
	f := &fake{agents: []*daemonv1.Agent{someAgent()}, logs: []string{"one", "two"}}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "", "logs", "guide"), outcome{out: "one\ntwo\n"})
	if r := f.last().(*daemonv1.LogsRequest); r.GetFollow() || r.GetSinceMs() != 0 || r.Tail != nil {
		t.Errorf("asked for %v", r)
	}
	check(t, otters(t.Context(), socket, "", "logs", "-t", "-f", "--since", "2023-11-14T22:13:20Z", "--tail", "0", "guide"),
		outcome{out: "                         stderr  one\n2023-11-14T22:13:20.123Z stderr  two\n"})
	if r := f.last().(*daemonv1.LogsRequest); !r.GetFollow() || r.GetSinceMs() != 1_700_000_000_000 || r.Tail == nil || r.GetTail() != 0 {
		t.Errorf("asked for %v", r)
	}
	now := time.UnixMilli(1_700_000_000_000)
	if ms, err := sinceMs("90s", now); err != nil || ms != now.UnixMilli()-90_000 {
		t.Errorf("90s is %d, %v", ms, err)
	}
}
