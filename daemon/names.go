package daemon

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// minIDPrefix is the shortest prefix of an id that names an agent.
	minIDPrefix = 4
	// maxCandidates bounds what an ambiguous name lists.
	maxCandidates = 20
	// chooseTries is how often a name is made up before that is given up.
	chooseTries = 100
)

// namePattern is the rule of NAME in docs/agentfile.md.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// checkName refuses a name outside the rule, and one that could be taken for an id.
func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return fail(codes.InvalidArgument, "", "name %q: want 1 to 63 letters, digits, dots, underscores or hyphens, starting with a letter or digit", clip(name))
	}
	if _, err := uuid.Parse(name); err == nil {
		return fail(codes.InvalidArgument, "", "name %q: is an id; choose one that can't be taken for one", name)
	}
	return nil
}

func clip(s string) string {
	if len(s) > 100 {
		return strings.ToValidUTF8(s[:100], "") + "…"
	}
	return s
}

var (
	firstWords  = strings.Fields("amber ample bold brave brisk bright calm clear clever cosy crisp dapper deft eager easy fair fleet fond frank fresh gentle glad golden grand hardy hazel jolly keen kind lively lucid lunar mellow merry mild misty neat nimble noble plucky polar proud quick quiet rapid ready robust rosy sage serene sharp silver sleek snug solar solid sunny swift tidy vivid warm witty zesty")
	secondWords = strings.Fields("alder anchor aspen bay beacon birch brook canyon cedar clover coast comet coral cove creek delta dune ember fern fjord forest garden glade grove harbor heron inlet island jetty juniper kelp lagoon lake lark lily lotus maple marsh meadow moss oak orchid otter pebble pine planet pond prairie reef ridge river robin sail shell shore sparrow spruce stone summit thicket tide valley willow wren")
)

// madeUpName is two words and a number, such as calm-otter-42.
func madeUpName() string {
	return fmt.Sprintf("%s-%s-%d", firstWords[rand.IntN(len(firstWords))], secondWords[rand.IntN(len(secondWords))], rand.IntN(100))
}

// claimName takes a name for an agent that is being created: the one asked for, else the image's
// where it is free, else one made up. The caller gives it back with releaseName when that fails.
func (s *supervisor) claimName(asked, images string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked != "" {
		if s.names[asked] {
			return "", fail(codes.AlreadyExists, "choose another name, or remove that agent with `otters rm "+asked+"`", "name %s: an agent has it already", asked)
		}
		s.names[asked] = true
		return asked, nil
	}
	if images != "" && checkName(images) == nil && !s.names[images] {
		s.names[images] = true
		return images, nil
	}
	for range chooseTries {
		if name := madeUpName(); !s.names[name] {
			s.names[name] = true
			return name, nil
		}
	}
	return "", fail(codes.ResourceExhausted, "give one with --name", "no free name found in %d tries", chooseTries)
}

func (s *supervisor) releaseName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

// lookup finds the agent that a client calls arg: by name, else by id, else by a prefix of an id.
func (s *supervisor) lookup(arg string) (*supervised, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if arg == "" {
		return nil, fail(codes.InvalidArgument, "", "no agent is named: give its name or id")
	}
	if id, err := uuid.Parse(arg); err == nil {
		if a, ok := s.agents[id]; ok {
			return a, nil
		}
	}
	var found []*supervised
	prefix := strings.ToLower(arg)
	for _, a := range s.agents {
		if a.name == arg {
			return a, nil
		}
		if len(arg) >= minIDPrefix && strings.HasPrefix(a.id.String(), prefix) {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 0:
		return nil, fail(codes.NotFound, "`otters ps` lists the agents there are", "agent %q: there is none of that name or id", clip(arg))
	case 1:
		return found[0], nil
	}
	return nil, ambiguous(arg, found)
}

func ambiguous(arg string, found []*supervised) error {
	slices.SortFunc(found, func(a, b *supervised) int { return cmp.Compare(a.id.String(), b.id.String()) })
	detail := &daemonv1.AmbiguousName{Name: arg}
	var ids []string
	for _, a := range found[:min(len(found), maxCandidates)] {
		detail.Candidates = append(detail.Candidates, a.summary())
		ids = append(ids, a.id.String()[:13]+" ("+a.name+")")
	}
	f := fail(codes.FailedPrecondition, "give more of the id, or the name", "agent %q: %d ids start so: %s", clip(arg), len(found), strings.Join(ids, ", "))
	f.details = []proto.Message{detail}
	return f
}
