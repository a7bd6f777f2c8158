package main

import (
	"fmt"
	"iter"
	"strings"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// barWidth is the width of a progress bar, in characters.
const barWidth = 24

// transfer shows how a push or pull goes on, on standard error: a bar a part on a terminal, a line a
// part that is done elsewhere. The image's name and digest go to standard output unless quiet.
func (a *app) transfer(events iter.Seq2[*daemonv1.TransferResponse, error], quiet bool) error {
	b := &bars{app: a, rows: map[string]int{}}
	for m, err := range events {
		if err != nil {
			return err
		}
		if t := m.GetTransfer(); t != nil {
			b.show(t)
			continue
		}
		if quiet {
			continue
		}
		l := lines{w: a.out}
		l.printf("%s %s\n", neutral(m.GetReference(), false), neutral(m.GetDigest(), false))
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// bars are the lines of a transfer, in the order in which its parts were first told of.
type bars struct {
	*app
	rows map[string]int
}

func (b *bars) show(t *daemonv1.Transfer) {
	if !b.errTerm {
		if t.GetState() != "moving" {
			fmt.Fprintln(b.err, strings.TrimRight(partLine(t), " "))
		}
		return
	}
	row, ok := b.rows[t.GetDigest()]
	if !ok {
		row = len(b.rows)
		b.rows[t.GetDigest()] = row
		fmt.Fprintln(b.err)
	}
	up := len(b.rows) - row
	fmt.Fprintf(b.err, "\x1b[%dA\r\x1b[K%s %s\x1b[%dB\r", up, bar(t), partLine(t), up)
}

func bar(t *daemonv1.Transfer) string {
	filled := barWidth
	if t.GetState() == "moving" && t.GetSize() > 0 {
		filled = int(min(barWidth, max(0, t.GetDone()*barWidth/t.GetSize())))
	}
	return "[" + strings.Repeat("=", filled) + strings.Repeat(" ", barWidth-filled) + "]"
}

func partLine(t *daemonv1.Transfer) string {
	return fmt.Sprintf("%s %-7s %8s %s", short(oneLine(t.GetDigest())), oneLine(t.GetState()), size(t.GetSize()), oneLine(excerpt(t.GetTitle(), 40)))
}
