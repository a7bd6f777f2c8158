//go:build linux

package sandbox_test

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/otters-sh/otters/sandbox"
)

// memory reads a figure in KiB from a file of /proc.
func memory(t *testing.T, pid int, file, name string) int {
	t.Helper()
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/" + file)
	if err != nil {
		t.Skip("the monitor is non-dumpable, its memory is root's to read:", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 1 && fields[0] == name {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", f.Name(), name)
	return 0
}

// The monitor's budget: a file under 4 MiB, under 2 MiB of memory (PSS) while its program idles.
func TestMonitorIsSmall(t *testing.T) {
	st, err := os.Stat(monitorPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("file: %d KiB", st.Size()>>10)
	if st.Size() > 4<<20 {
		t.Errorf("file of %d bytes", st.Size())
	}
	out, err := exec.Command("go", "list", "-deps", "../cmd/otters-sandbox").Output()
	if err != nil {
		t.Skip("no go command:", err)
	}
	for _, heavy := range []string{"fmt", "net", "encoding/json", "log/slog", "os/exec"} {
		if slices.Contains(strings.Fields(string(out)), heavy) {
			t.Errorf("the monitor imports %s", heavy)
		}
	}
	l := newLauncher(t, sandbox.LauncherOptions{})
	for _, level := range append([]sandbox.Level{sandbox.Off}, confined...) {
		t.Run(string(level), func(t *testing.T) { weigh(t, l, level) })
	}
}

func weigh(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
	need(t, l, level)
	w := newWorld(t)
	const many = 10
	var pss, anon int
	var all []*sandbox.Process
	for range many {
		p := start(t, l, w.spec(t, level, "exec sleep 1000"))
		if _, err := p.Files(deadline(t)); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	for _, p := range all {
		pss += memory(t, p.MonitorPID(), "smaps_rollup", "Pss:")
		anon += memory(t, p.MonitorPID(), "smaps_rollup", "Pss_Anon:")
		smallHeap(t, p.MonitorPID())
	}
	t.Logf("mean of %d monitors: %d KiB PSS, of which %d KiB anonymous", many, pss/many, anon/many)
	if pss/many > 2<<10 {
		t.Errorf("PSS of %d KiB", pss/many)
	}
}

// smallHeap checks that the heap of the process can have no huge pages, whatever the host does with the memory
// of who doesn't say: its first touch would take 2 MiB. A Go heap is what is mapped by 4 MiB.
func smallHeap(t *testing.T, pid int) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		return // nothing is ever huge, and no mapping is marked
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, size, marked := "", 0, 0
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		switch {
		case fields[0] == "Size:":
			size, _ = strconv.Atoi(fields[1])
		case fields[0] != "VmFlags:":
			if !strings.HasSuffix(fields[0], ":") {
				mapping = s.Text()
			}
		case slices.Contains(fields, "nh"):
			marked++
		case size >= 4<<10 && slices.Contains(fields, "wr"):
			t.Errorf("%s: %d KiB that may be huge pages", mapping, size)
		}
	}
	if marked == 0 {
		t.Error("the heap is not kept from having huge pages")
	}
}

// BenchmarkBare is what the host takes to start the same program with nothing around it.
func BenchmarkBare(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		c := exec.Command("/bin/sleep", "1000")
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
		b.StopTimer()
		_ = c.Process.Kill()
		_ = c.Wait()
		time.Sleep(5 * time.Millisecond)
		b.StartTimer()
	}
	report(b, took)
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
}

// BenchmarkStart measures from the call to the word that the program runs, with a monitor that
// waits and with one that has to be started.
func BenchmarkStart(b *testing.B) {
	for name, warm := range map[string]int{"warm": 1, "cold": -1} {
		for _, level := range []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict} {
			b.Run(name+"/"+string(level), func(b *testing.B) {
				l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: monitorPath, Warm: warm})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				spec := sandbox.Spec{
					Level: level, Path: "/bin/sleep", Args: []string{"1000"}, Dir: "/usr", UID: -1, GID: -1, StateDir: b.TempDir(),
					Binds: hostPrograms(),
				}
				if os.Geteuid() == 0 {
					spec.UID, spec.GID = agentUser, agentUser
				}
				if err := l.Lacks(level); err != nil {
					b.Skip(err)
				}
				if err := os.Chmod(spec.StateDir, 0o700); err != nil {
					b.Fatal(err)
				}
				var took []time.Duration
				for b.Loop() {
					b.StopTimer()
					for warm > 0 && len(l.WarmPIDs()) == 0 {
						time.Sleep(100 * time.Microsecond)
					}
					time.Sleep(5 * time.Millisecond) // the monitor that waits has settled
					b.StartTimer()
					begin := time.Now()
					p, err := l.Start(b.Context(), spec)
					if err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(begin))
					b.StopTimer()
					if err := p.Stop(b.Context(), 0); err != nil {
						b.Fatal(err)
					}
					if err := p.Close(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				report(b, took)
			})
		}
	}
}
