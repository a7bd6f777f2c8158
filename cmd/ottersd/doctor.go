package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/otters-sh/otters/internal/breakout"
	"github.com/otters-sh/otters/sandbox"
)

const doctorUsage = `usage: ottersd doctor [--attack] [--format table|json]

  --attack  run otters-attack at every level that this host supports, and print what came of each attack
`

// diagnosis is what doctor prints.
type diagnosis struct {
	Platform string  `json:"platform"`
	User     int     `json:"user"`
	Checks   []check `json:"checks"`
	Levels   []level `json:"levels"`
}

// check is one thing that confinement is built on.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	// For are the levels that need it, Fix how to get it where it lacks.
	For []sandbox.Level `json:"for"`
	Fix string          `json:"fix,omitempty"`
}

type level struct {
	Level     sandbox.Level `json:"level"`
	Supported bool          `json:"supported"`
	// Lacks is why the host can't give it.
	Lacks string `json:"lacks,omitempty"`
	// Limits tell what would bound an agent, or why nothing can.
	Limits []limit `json:"limits,omitempty"`
	// Attacks are there with --attack.
	Attacks []breakout.Report `json:"attacks,omitempty"`
}

// groupFix is how to get limits.
const groupFix = "run the daemon as root, or in a control group that is delegated to its user, as systemd does for a user's service with Delegate=yes"

// limit is memory, cpus or pids.
type limit struct {
	Name string `json:"name"`
	// By is what enforces it, empty where nothing does; Lacks then tells why.
	By    string `json:"by,omitempty"`
	Lacks string `json:"lacks,omitempty"`
}

// tryLevels asks what the host gives.
func (d *diagnosis) tryLevels(monitor string) error {
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: monitor, Warm: -1})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, name := range []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict} {
		told := level{Level: name, Supported: true}
		if err := l.Lacks(name); err != nil {
			told.Supported, told.Lacks = false, err.Error()
		} else {
			told.Limits = limitsAt(l, name)
		}
		d.Levels = append(d.Levels, told)
	}
	return nil
}

// limitsAt asks for each limit alone.
func limitsAt(l *sandbox.Launcher, at sandbox.Level) []limit {
	var all []limit
	for _, ask := range []struct {
		name   string
		limits sandbox.Limits
	}{
		{sandbox.LimitMemory, sandbox.Limits{Memory: sandbox.MinMemory}}, {sandbox.LimitCPU, sandbox.Limits{CPU: sandbox.MinCPU}},
		{sandbox.LimitPIDs, sandbox.Limits{PIDs: sandbox.MinPIDs}},
	} {
		told := limit{Name: ask.name}
		if by, err := l.LimitedBy(at, ask.limits); err != nil {
			told.Lacks = err.Error()
		} else if len(by) > 0 {
			told.By = by[0].Mechanism
		}
		all = append(all, told)
	}
	return all
}

// doctor explains what this host can confine with, what it lacks, and how to get that.
func doctor(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("ottersd doctor", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	attack := fs.Bool("attack", false, "")
	format := fs.String("format", "table", "")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, err = fmt.Fprint(stdout, doctorUsage)
			return err
		}
		return usageError{fmt.Errorf("%w; `ottersd doctor --help` shows what there is", err)}
	}
	if fs.NArg() > 0 || *format != "table" && *format != "json" {
		return usageError{fmt.Errorf("doctor %q, format %q: no arguments, and table or json; `ottersd doctor --help` shows what there is", fs.Args(), *format)}
	}
	monitor, err := beside("otters-sandbox")
	d := diagnosis{Platform: runtime.GOOS + "/" + runtime.GOARCH, User: os.Geteuid(), Checks: hostChecks()}
	if d.Checks = append([]check{programCheck("otters-sandbox", monitor, err)}, d.Checks...); err == nil {
		if err := d.tryLevels(monitor); err != nil {
			return err
		}
		d.Checks = append(d.Checks, d.limitChecks()...)
	}
	if *attack {
		if err := d.attack(ctx, monitor, err); err != nil {
			return err
		}
	}
	if *format == "json" {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(d)
	}
	return d.print(stdout)
}

// usageError is an error of whoever called.
type usageError struct{ error }

// attack runs every attack at every level that is supported.
func (d *diagnosis) attack(ctx context.Context, monitor string, missing error) error {
	if missing != nil {
		return missing
	}
	program, err := beside("otters-attack")
	if err != nil {
		return err
	}
	for i, l := range d.Levels {
		if !l.Supported {
			continue
		}
		if d.Levels[i].Attacks, err = breakout.Run(ctx, breakout.Options{Attack: program, Monitor: monitor, Level: l.Level}); err != nil {
			return fmt.Errorf("level %s: %w", l.Level, err)
		}
	}
	return nil
}

// beside finds a program beside this one, or else in PATH.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if _, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s: no such program beside ottersd or in PATH; install it there", name)
	}
	return filepath.Abs(path)
}

func programCheck(name, path string, err error) check {
	c := check{Name: name, OK: err == nil, Found: path, For: []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}}
	if err != nil {
		c.Found, c.Fix = "not found", "install it beside ottersd or into PATH"
	}
	return c
}

// limitCells are the cells of the limits, as many at every level: a row with fewer would end the columns. lack is why
// the first that can't be had can't.
func (l level) limitCells() (cells, lack string) {
	if !l.Supported {
		return "n/a\tn/a\tn/a", ""
	}
	var by []string
	for _, limit := range l.Limits {
		by, lack = append(by, cmp.Or(limit.By, "-")), cmp.Or(lack, limit.Lacks)
	}
	return strings.Join(by, "\t"), lack
}

func (d *diagnosis) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHECK\tSTATE\tFOUND\tNEEDED FOR")
	for _, c := range d.Checks {
		state := "ok"
		if !c.OK {
			state = "lacks"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%v\n", c.Name, state, c.Found, c.For)
	}
	fmt.Fprintln(tw)
	fmt.Fprintln(tw, "LEVEL\tSUPPORTED\tMEMORY\tCPUS\tPIDS")
	var lacks strings.Builder
	var missing string
	for _, l := range d.Levels {
		limits, lack := l.limitCells()
		missing = cmp.Or(missing, lack)
		fmt.Fprintf(tw, "%s\t%t\t%s\n", l.Level, l.Supported, limits)
		if l.Lacks != "" {
			fmt.Fprintf(&lacks, "\n%s\n", l.Lacks)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if missing != "" {
		fmt.Fprintf(&lacks, "\n-: %s; %s (--format json tells why for each)\n", missing, groupFix)
	}
	if _, err := io.WriteString(w, lacks.String()); err != nil {
		return err
	}
	for _, c := range d.Checks {
		if !c.OK {
			if _, err := fmt.Fprintf(w, "\n%s: %s\n", c.Name, c.Fix); err != nil {
				return err
			}
		}
	}
	var columns []breakout.Column
	for _, l := range d.Levels {
		if l.Attacks != nil {
			columns = append(columns, breakout.Column{Title: string(l.Level), Reports: l.Attacks})
		}
	}
	if len(columns) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return breakout.Print(w, columns)
}
