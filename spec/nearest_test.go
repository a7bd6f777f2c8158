package spec

import "testing"

// Invariant: the same names suggest the same one, in whatever order a folder is listed.
func TestTheNearestNameIsTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	for word, c := range map[string]struct{ a, b, want string }{
		"god":  {"Good", "good", "good"},
		"GOD":  {"Good", "GOOD", "GOOD"},
		"note": {"nota", "noto", "nota"},
	} {
		for _, names := range [][]string{{c.a, c.b}, {c.b, c.a}} {
			if got := nearest(word, names); got != c.want {
				t.Errorf("%s of %q: %s, want %s", word, names, got, c.want)
			}
		}
	}
}
