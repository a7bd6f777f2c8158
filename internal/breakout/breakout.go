// Package breakout runs the program otters-attack as an agent at a level of the sandbox, against
// victims of its own making, and gathers what came of each attack: the daemon's user's files,
// another agent, a process, servers and shared memory of the host. It is for the test that holds
// docs/security.md to what is true, and for `otters doctor --attack`.
//
// Invariant: nothing is left behind, neither files nor processes, whatever succeeded.
package breakout

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/otters-sh/otters/sandbox"
)

// Outcomes of an attack.
const (
	Denied    = "denied"
	Succeeded = "succeeded"
	// Skipped tells that there was nothing to attack.
	Skipped = "skipped"
	// Broken tells that the attack itself did not work, which says nothing of the sandbox.
	Broken = "broken"
	// planted is for this package to find out.
	planted = "planted"
)

// Options say what to run. Attack and Monitor are paths of otters-attack and otters-sandbox.
type Options struct {
	Attack, Monitor string
	Level           sandbox.Level
	// Limits bound the agent that attacks; the zero value is none.
	Limits sandbox.Limits
	// Setuid is the path of a set-user-id copy of Attack that belongs to root; empty makes one
	// where this process is root, and skips that attack elsewhere.
	Setuid string
	// Bare runs the program a third time, without a sandbox: what succeeds there is what the host
	// gives to any process of the agent's user.
	Bare bool
}

// Bare is the role of a plain process of the agent's user, without a sandbox.
const Bare = "bare"

// Report is what came of one attack.
type Report struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Covers are the ids of the cases that the attack stems from.
	Covers   string `json:"covers"`
	Outcome  string `json:"outcome"`
	Evidence string `json:"evidence"`
	// Twin is "ok", "broken" or "none": whether the nearest thing that must work does.
	Twin         string `json:"twin"`
	TwinEvidence string `json:"twin_evidence,omitempty"`
	// Role is "runtime" where the program stood in for an agent's runtime, "tool" where it ran as
	// one of its tools, or Bare.
	Role string `json:"role"`
}

// parse reads what the program printed.
func parse(out []byte, role string) ([]Report, error) {
	var all []Report
	for line := range strings.Lines(string(out)) {
		r := Report{Role: role}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w: %q", role, err, line[:min(len(line), 200)])
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: it printed nothing", role)
	}
	return all, nil
}

// Column is one run of all attacks.
type Column struct {
	Title   string
	Reports []Report
}

// Print writes a table: a row for each attack, and two fields in each column, of the runtime and of
// the tool. Every success is told with its evidence below.
func Print(w io.Writer, columns []Column) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "ATTACK\tCASES")
	for _, c := range columns {
		fmt.Fprintf(tw, "\t%s", strings.ToUpper(c.Title))
	}
	fmt.Fprintln(tw)
	for _, r := range rows(columns) {
		fmt.Fprintf(tw, "%s\t%s", r.ID, r.Covers)
		for _, c := range columns {
			fmt.Fprintf(tw, "\t%s", cell(c, r.ID))
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, c := range columns {
		if err := printSuccesses(w, c); err != nil {
			return err
		}
	}
	return nil
}

func rows(columns []Column) []Report {
	var all []Report
	seen := map[string]bool{}
	for _, c := range columns {
		for _, r := range c.Reports {
			if !seen[r.ID] {
				seen[r.ID] = true
				all = append(all, r)
			}
		}
	}
	return all
}

// cell is one outcome where runtime and tool agree, else both.
func cell(c Column, id string) string {
	var said []string
	for _, r := range c.Reports {
		if r.ID != id {
			continue
		}
		text := r.Outcome
		if text == Succeeded {
			text = "SUCCEEDED"
		}
		if r.Twin == "broken" {
			text += " (twin broken)"
		}
		said = append(said, text)
	}
	switch {
	case len(said) == 0:
		return "-"
	case len(said) == 2 && said[0] != said[1]:
		return said[0] + " / " + said[1]
	}
	return said[0]
}

func printSuccesses(w io.Writer, c Column) error {
	count := map[string]int{}
	var text strings.Builder
	for _, r := range c.Reports {
		count[r.Outcome]++
		if r.Outcome == Succeeded || r.Outcome == Broken || r.Twin == "broken" {
			fmt.Fprintf(&text, "  %s, as %s: %s: %s: %s %s\n", r.ID, r.Role, r.Name, r.Outcome, r.Evidence, r.TwinEvidence)
		}
	}
	_, err := fmt.Fprintf(w, "\n%s: %d denied, %d succeeded, %d skipped, %d broken\n%s",
		c.Title, count[Denied], count[Succeeded], count[Skipped], count[Broken], text.String())
	return err
}
