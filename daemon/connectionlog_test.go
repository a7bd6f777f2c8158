package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/otters-sh/otters/egress"
)

// Invariant: every connection has a line or is counted in one, and no agent fills the log. Worst inputs: the
// same connection again and again, ever new hosts, a name with a thousand addresses.

// lineTest is a log with a clock that the test sets.
type lineTest struct {
	*connectionLog
	out bytes.Buffer
	at  time.Time
}

func newLineTest() *lineTest {
	l := &lineTest{at: time.Unix(1_700_000_000, 0)}
	l.connectionLog = newConnectionLog(slog.New(slog.NewTextHandler(&l.out, nil)))
	l.now = func() time.Time { return l.at }
	return l
}

// report is what is written of one connection.
func (l *lineTest) report(agent, host string, allowed bool, addresses ...netip.Addr) string {
	l.out.Reset()
	c := egress.Connection{Agent: agent, Method: "CONNECT", Host: host, Port: 443, Allowed: allowed, Addresses: addresses}
	if !allowed {
		c.Reason = "not among"
	}
	if err := l.Report(context.Background(), c); err != nil {
		return err.Error()
	}
	return l.out.String()
}

func TestALineAboutAConnectionNamesFourAddresses(t *testing.T) {
	t.Parallel()
	l := newLineTest()
	var many []netip.Addr
	for i := range 1000 {
		many = append(many, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	if got := l.report("a", "x.test", true, many...); !strings.Contains(got, "192.0.2.3]") || strings.Contains(got, "192.0.2.4") || !strings.Contains(got, "more_addresses=996") {
		t.Errorf("a thousand addresses: %s", got)
	}
	if got := l.report("a", "four.test", true, many[:4]...); !strings.Contains(got, "192.0.2.3]") || strings.Contains(got, "more_addresses") {
		t.Errorf("four addresses: %s", got)
	}
}

func TestLinesAboutConnectionsAreBoundedAndCountTheRest(t *testing.T) {
	t.Parallel()
	l := newLineTest()
	l.report("a", "x.test", true)
	for range 50 {
		if got := l.report("a", "x.test", true); got != "" {
			t.Fatalf("the same place again: %s", got)
		}
	}
	// Another verdict, another agent, and the same later have lines of their own.
	if got := l.report("a", "x.test", false); !strings.Contains(got, "connections_without_a_line=50") || !strings.Contains(got, "connection refused") {
		t.Errorf("refused: %s", got)
	}
	if got := l.report("b", "x.test", true); !strings.Contains(got, "agent=b") || strings.Contains(got, "without") {
		t.Errorf("another agent: %s", got)
	}
	l.at = l.at.Add(samePause)
	if got := l.report("a", "x.test", true); !strings.Contains(got, "connection allowed") || strings.Contains(got, "without") {
		t.Errorf("later: %s", got)
	}
	// Ever new hosts.
	lines := 0
	for i := range 10_000 {
		if l.report("a", fmt.Sprint(i, ".test"), false) != "" {
			lines++
		}
	}
	if lines > linesAtOnce || lines < linesAtOnce/2 {
		t.Errorf("%d lines about 10000 hosts", lines)
	}
	if n := len(l.agents["a"].told); n > 2*linesAtOnce+2 {
		t.Errorf("%d places are kept", n)
	}
	l.at = l.at.Add(linePause)
	if got := l.report("a", "one more.test", false); !strings.Contains(got, fmt.Sprint("connections_without_a_line=", 10_000-lines)) {
		t.Errorf("after a pause: %s", got)
	}
	l.report("a", "one more.test", false)
	l.out.Reset()
	l.forget("a")
	l.forget("a")
	if got := l.out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "connections_without_a_line=1") {
		t.Errorf("at the end: %s", got)
	}
}
