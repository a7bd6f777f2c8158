package spec

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of the language. What is over one is refused with the bound in the message.
const (
	// MaxSource is the size of an Agentfile in bytes, and of what its ARGs may add to it.
	MaxSource = 4 << 20
	// MaxLine is the length of an instruction's line in bytes.
	MaxLine = 256 << 10
	// MaxInstructions is the number of instructions of a file, and of elements of each kind of a
	// definition that inherits.
	MaxInstructions = 10_000
	// MaxContent is the size of one CONTEXT or one BIN usage in bytes.
	MaxContent = 1 << 20
	// MaxTexts is the size of all CONTEXTs of a file that come from files, in bytes.
	MaxTexts = 16 << 20
	// MaxFile is the size of one ADD file in bytes.
	MaxFile = 1 << 30
	// MaxSkills is the number of skills, MaxSkillFiles that of the files and folders of one, MaxSkillDepth
	// how deep they lie in it, and MaxSkillBytes the size of its files together.
	MaxSkills     = 64
	MaxSkillFiles = 1000
	MaxSkillDepth = 10
	MaxSkillBytes = 16 << 20
	// MaxSkillText is the size of a SKILL.md in bytes; runtimes read no more of it.
	MaxSkillText = 256 << 10
	// MaxValue is the size of a CONFIG, ENV, LABEL, ARG or EXEC value in bytes. Linux takes no
	// variable or argument over 128 KiB.
	MaxValue = 64 << 10
	// MaxDescription is the size of a description in bytes.
	MaxDescription = 4 << 10
	// MaxExec is the number of EXEC arguments.
	MaxExec = 256
	// MaxDepth is the number of parents, parents of parents and so on.
	MaxDepth = 10
)

// skillsDir is where skills lie in etc/data, and SkillFile what each has.
const (
	skillsDir = "skills/"
	SkillFile = "SKILL.md"
)

var (
	skillPattern = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	labelPattern = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	envPattern   = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
	argPattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,62}$`)
)

// reservedContexts are the documents that the workspace generates.
var reservedContexts = []string{"AGENT", "WORKSPACE", "MOUNTS"}

// reservedEnvs are the variables that the executor sets.
var reservedEnvs = []string{
	"PATH", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR", "LANG",
	"OTTERS_AGENT_ROOT", "OTTERSD_URL", "OTTERS_AGENT_TOKEN", "HTTP_PROXY", "HTTPS_PROXY",
}

// reservedLabels are the annotations that a build computes; a file that could set them could forge
// its ancestry.
var reservedLabels = []string{
	"org.opencontainers.image.base.name", "org.opencontainers.image.base.digest", "io.openotters.base.chain",
}

const nameRule = "a name is 1 to 63 letters, digits, ., _ or -, the first a letter or digit"

func checkName(s string) error {
	if !namePattern.MatchString(s) {
		return fmt.Errorf("%q is not a name: %s", clip(s), nameRule)
	}
	return nil
}

func checkContextName(s string) error {
	if slices.Contains(reservedContexts, s) {
		return fmt.Errorf("the name %s is reserved: the workspace writes %s.md itself; choose another", s, s)
	}
	return checkName(s)
}

func checkAddName(s string) error {
	if name, ok := strings.CutPrefix(s, skillsDir); ok {
		return checkSkillName(name)
	}
	return checkDataName(s)
}

// checkDataName refuses "bins", the folder of the tools' documents in etc/data.
func checkDataName(s string) error {
	if s == "bins" {
		return errors.New("the name bins is reserved: etc/data/bins holds the tools' documents; choose another")
	}
	return checkName(s)
}

func checkSkillName(s string) error {
	if !skillPattern.MatchString(s) {
		return fmt.Errorf("%q is not the name of a skill: it is 1 to 64 of a to z, digits and -", clip(s))
	}
	return nil
}

// checkSkills checks the ADDs together. It returns the name of the one that is wrong with the reason.
func checkSkills(list []Add) (string, error) {
	skills := 0
	for _, d := range list {
		if !d.IsSkill() {
			continue
		}
		if skills++; skills > MaxSkills {
			return d.Name, fmt.Errorf("more than %d skills", MaxSkills)
		}
	}
	if skills > 0 && slices.ContainsFunc(list, func(d Add) bool { return d.Name+"/" == skillsDir }) {
		return "skills", errors.New("the name skills is taken: etc/data/skills holds the skills; choose another")
	}
	return "", nil
}

func checkConfigKey(s string) error {
	if !labelPattern.MatchString(s) {
		return fmt.Errorf("%q is not a CONFIG key: a key is 1 to 63 lower-case letters, digits or inner hyphens", clip(s))
	}
	return nil
}

func checkCapability(s string) error {
	if !labelPattern.MatchString(capability(s)) {
		return fmt.Errorf("%q is not a capability: a name is 1 to 63 lower-case letters, digits or inner hyphens", clip(s))
	}
	return nil
}

// capability is the form in which a capability is kept; _ is another way to write -.
func capability(s string) string { return strings.ReplaceAll(s, "_", "-") }

func checkEnvKey(s string) error {
	if !envPattern.MatchString(s) || len(s) > 255 {
		return fmt.Errorf("%q is not an ENV key: a key is at most 255 capitals, digits or _, the first no digit", clip(s))
	}
	var rule string
	switch {
	case slices.Contains(reservedEnvs, s):
		rule = "the executor sets it"
	case strings.HasPrefix(s, "LISTEN_"):
		rule = "LISTEN_… hands listeners to the runtime"
	case strings.HasPrefix(s, "RUNTIME_"):
		rule = "RUNTIME_… carries CONFIG; write a CONFIG"
	case strings.HasSuffix(s, "_API_KEY"), strings.HasSuffix(s, "_API_BASE"):
		rule = "…_API_KEY and …_API_BASE lead to the model; keys belong in providers.yaml"
	default:
		return nil
	}
	return fmt.Errorf("the key %s is reserved: %s", s, rule)
}

func checkLabelKey(s string) error {
	switch {
	case s == "" || len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("%q is not a LABEL key: a key is 1 to 255 bytes without blanks and control characters", clip(s))
	case slices.Contains(reservedLabels, s):
		return fmt.Errorf("the label %s is reserved: the build computes it from FROM", s)
	}
	return nil
}

func checkArgKey(s string) error {
	if !argPattern.MatchString(s) {
		return fmt.Errorf("%q is not an ARG key: a key is 1 to 63 letters, digits, ., _ or -, the first a letter or _", clip(s))
	}
	return nil
}

// checkModel knows the same form as package model, which this one may not import.
func checkModel(s string) error {
	provider, name, ok := strings.Cut(s, "/")
	switch {
	case !ok || provider == "" || name == "":
		return fmt.Errorf("%q is not a model: write provider/model", clip(s))
	case !labelPattern.MatchString(provider):
		return fmt.Errorf("%q is not a provider: it is 1 to 63 lower-case letters, digits or inner hyphens", clip(provider))
	case len(name) > 255 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fmt.Errorf("the model's name %q has blanks, control characters or more than 255 bytes", clip(name))
	}
	return nil
}

func checkFrom(s string) error {
	if s == "scratch" {
		return nil
	}
	return checkReference(s)
}

func checkReference(s string) error {
	_, err := ParseReference(s)
	return err
}

// checkSource checks a path in the build folder. That it stays inside through symlinks too is seen
// where it is opened.
func checkSource(s string) error {
	switch {
	case s == "":
		return errors.New("the path is empty; name a file of the build folder")
	case len(s) > 4096:
		return fmt.Errorf("the path has %d bytes, more than 4096", len(s))
	case path.IsAbs(s):
		return fmt.Errorf("the path %q is absolute; name a file of the build folder", clip(s))
	case slices.Contains(strings.Split(s, "/"), ".."):
		return fmt.Errorf("the path %q has a .. part; name a file of the build folder", clip(s))
	case path.Clean(s) == "." || strings.HasSuffix(s, "/"):
		return fmt.Errorf("the path %q is a folder; name a file", clip(s))
	}
	return checkText(s, 4096)
}

// checkAddSource takes a folder too, with one slash at its end: that of a skill.
func checkAddSource(s string) error {
	if folder, ok := strings.CutSuffix(s, "/"); ok && folder != "" && !strings.HasSuffix(folder, "/") && path.Clean(folder) != "." {
		return checkSource(folder)
	}
	return checkSource(s)
}

func checkDescription(s string) error {
	if err := checkText(s, MaxDescription); err != nil {
		return fmt.Errorf("the description %w", err)
	}
	return nil
}

func checkValue(s string) error {
	if err := checkText(s, MaxValue); err != nil {
		return fmt.Errorf("the value %w", err)
	}
	return nil
}

func checkContent(s string) error {
	if err := checkText(s, MaxContent); err != nil {
		return fmt.Errorf("the text %w", err)
	}
	return nil
}

func checkText(s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("has %d bytes, more than %d", len(s), most)
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.IndexByte(s, 0) >= 0:
		return errors.New("has a NUL byte")
	}
	return nil
}
