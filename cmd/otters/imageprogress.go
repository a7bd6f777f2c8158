package main

import (
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// barWidth is the width of a progress bar, in characters.
const barWidth = 24

// transfer shows how a push or pull goes on, on standard error: a bar a part on a terminal, a line a
// part that is done elsewhere. The image's name and digest go to standard output unless quiet.
func (a *app) transfer(events iter.Seq2[*daemonv1.TransferResponse, error], quiet bool) error {
	b := &bars{app: a}
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

// maxBars is how many bars are drawn at once, so that they fit the lowest terminal.
const maxBars = 10

// bars are the parts of a transfer that move, below those that are done.
type bars struct {
	*app
	moving []*daemonv1.Transfer
	drawn  int
}

func (b *bars) show(t *daemonv1.Transfer) {
	done := t.GetState() != "moving"
	if !b.errTerm {
		if done {
			fmt.Fprintln(b.err, strings.TrimRight(partLine(t), " "))
		}
		return
	}
	at := slices.IndexFunc(b.moving, func(m *daemonv1.Transfer) bool { return m.GetDigest() == t.GetDigest() })
	var out strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\r\x1b[J", b.drawn)
	}
	switch {
	case done:
		if at >= 0 {
			b.moving = slices.Delete(b.moving, at, at+1)
		}
		b.line(&out, t)
	case at >= 0:
		b.moving[at] = t
	default:
		b.moving = append(b.moving, t)
	}
	b.drawn = min(len(b.moving), maxBars)
	for _, t := range b.moving[:b.drawn] {
		b.line(&out, t)
	}
	fmt.Fprint(b.err, out.String())
}

// line draws a part in one line of the terminal: one that wraps could not be drawn over.
func (b *bars) line(out *strings.Builder, t *daemonv1.Transfer) {
	text := []rune(strings.TrimRight(bar(t)+" "+partLine(t), " "))
	if width := b.width(); len(text) >= width {
		text = text[:max(0, width-1)]
	}
	fmt.Fprintf(out, "%s\r\n", string(text))
}

// width is how many characters a line of standard error's terminal has.
func (a *app) width() int {
	if f, ok := a.err.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
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
