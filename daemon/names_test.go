package daemon

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: an argument names one agent or is refused with what it could have meant. Worst inputs:
// a prefix of several ids, a name that looks like a prefix of another's id, a name in use twice.

func namesForTest(agents map[string]string) *supervisor {
	s := &supervisor{agents: map[uuid.UUID]*supervised{}, names: map[string]bool{}}
	for id, name := range agents {
		s.add(newSupervised(s, record{id: uuid.MustParse(id), name: name}))
	}
	return s
}

func TestAnAgentIsFoundByNameIDAndPrefix(t *testing.T) {
	t.Parallel()
	const a, b, c = "aaaa1111-0000-4000-8000-000000000000", "aaaa2222-0000-4000-8000-000000000000", "cccc0000-0000-4000-8000-000000000000"
	s := namesForTest(map[string]string{a: "one", b: "two", c: "aaaa1"})
	for arg, want := range map[string]string{
		"one": a, a: a, strings.ToUpper(a): a, "aaaa11": a, "AAAA2": b, "cccc": c,
		"aaaa1": c, // a name wins over a prefix
	} {
		got, err := s.lookup(arg)
		if err != nil || got.id.String() != want {
			t.Errorf("%s: %v, %v; want %s", arg, got, err, want)
		}
	}
	for arg, want := range map[string]codes.Code{
		"": codes.InvalidArgument, "aaaa": codes.FailedPrecondition, "ccc": codes.NotFound, "One": codes.NotFound,
		"nosuch": codes.NotFound, strings.Repeat("x", 10000): codes.NotFound, "aaaa%": codes.NotFound,
	} {
		if _, err := s.lookup(arg); codeOf(err) != want || len(err.Error()) > 500 {
			t.Errorf("%.20q: %v, want %v", arg, err, want)
		}
	}
	_, err := s.lookup("aaaa")
	var detail *daemonv1.AmbiguousName
	for _, d := range toStatus(err).Details() {
		if m, ok := d.(*daemonv1.AmbiguousName); ok {
			detail = m
		}
	}
	if got := detail.GetCandidates(); len(got) != 2 || got[0].GetName() != "one" || got[1].GetName() != "two" {
		t.Errorf("candidates %v", got)
	}
}

func TestNamesAreUniqueAndChosenWhenNoneIsGiven(t *testing.T) {
	t.Parallel()
	s := namesForTest(nil)
	if got, err := s.claimName("", "guide"); err != nil || got != "guide" {
		t.Errorf("the image's name: %q, %v", got, err)
	}
	if _, err := s.claimName("guide", ""); codeOf(err) != codes.AlreadyExists {
		t.Errorf("a name in use: %v", err)
	}
	for range 50 {
		got, err := s.claimName("", "guide")
		if err != nil || checkName(got) != nil || strings.Count(got, "-") != 2 {
			t.Fatalf("made up: %q, %v", got, err)
		}
	}
	s.releaseName("guide")
	if got, err := s.claimName("guide", ""); err != nil || got != "guide" {
		t.Errorf("a name given back: %q, %v", got, err)
	}
}

func TestA7NamesOutsideTheRuleAreRefused(t *testing.T) {
	t.Parallel()
	for name, fine := range map[string]bool{
		"a": true, "Guide-2.0_x": true, strings.Repeat("a", 63): true,
		"": false, "../x": false, "a/b": false, "-a": false, ".a": false, "a b": false, "a\n": false, "ä": false, strings.Repeat("a", 64): false,
		"aaaa1111-0000-4000-8000-000000000000": false,
	} {
		if err := checkName(name); (err == nil) != fine {
			t.Errorf("%q: %v", name, err)
		}
	}
}
