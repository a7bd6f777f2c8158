package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// InvalidError is everything that is wrong with a definition, each with the field it is in. It is
// ErrInvalid to errors.Is.
type InvalidError struct {
	Problems []string
}

// Error prints the problems one below the other.
func (e *InvalidError) Error() string { return strings.Join(e.Problems, "\n") }

// Is tells that target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Validate checks a definition as Parse checks a file: one that was read from an image, changed by
// overrides or made by a program passes the same rules. FROM may be missing, and a required CONFIG
// may have a value, since overrides give it. The error is an *InvalidError.
func (a *Agentfile) Validate() error {
	v := &validator{}
	if a.From != "" {
		v.check("FROM", checkFrom(a.From))
	}
	if a.Runtime != "" {
		v.check("RUNTIME", checkReference(a.Runtime))
	}
	if a.Model != "" {
		v.check("MODEL", checkModel(a.Model))
	}
	if a.Name != "" {
		v.check("NAME", checkName(a.Name))
	}
	v.documents(a)
	v.settings(a)
	v.mounts(a.Mounts)
	if len(v.problems) > 0 {
		return &InvalidError{Problems: v.problems}
	}
	return nil
}

type validator struct {
	problems []string
}

func (v *validator) check(field string, errs ...error) {
	for _, err := range errs {
		if err != nil && len(v.problems) < maxProblems {
			v.problems = append(v.problems, fmt.Sprintf("%s: %v", field, err))
		}
	}
}

// each checks the elements of a list and that no key is there twice.
func each[L ~[]T, T any](v *validator, field string, list L, key func(T) string, check func(T) []error) {
	if len(list) > MaxInstructions {
		v.check(field, fmt.Errorf("%d elements, more than %d", len(list), MaxInstructions))
		return
	}
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		k := key(e)
		v.check(fmt.Sprintf("%s %s", field, clip(fmt.Sprintf("%q", k))), check(e)...)
		if seen[k] {
			v.check(field, fmt.Errorf("%q is there twice", clip(k)))
		}
		seen[k] = true
	}
}

func (v *validator) documents(a *Agentfile) {
	each(v, "CONTEXT", a.Contexts, func(c Context) string { return c.Name }, func(c Context) []error {
		errs := []error{checkContextName(c.Name), checkDescription(c.Description), checkContent(c.Content)}
		if c.File != "" {
			errs = append(errs, checkSource(c.File))
		}
		return errs
	})
	each(v, "BIN", a.Bins, func(b Bin) string { return b.Name }, func(b Bin) []error {
		return []error{checkName(b.Name), checkReference(b.Image), checkDescription(b.Description), checkContent(b.Usage)}
	})
	each(v, "ADD", a.Adds, func(d Add) string { return d.Name }, func(d Add) []error {
		return []error{checkAddName(d.Name), checkDescription(d.Description)}
	})
	if _, err := checkSkills(a.Adds); err != nil {
		v.check("ADD", err)
	}
	each(v, "CAPABILITY", a.Capabilities, capability, func(s string) []error {
		return []error{checkCapability(s)}
	})
}

func (v *validator) settings(a *Agentfile) {
	each(v, "CONFIG", a.Configs, func(c Config) string { return c.Key }, func(c Config) []error {
		errs := []error{checkConfigKey(c.Key), checkDescription(c.Description)}
		if c.Value != nil {
			errs = append(errs, checkValue(*c.Value))
		}
		return errs
	})
	each(v, "ENV", a.Envs, func(e Env) string { return e.Key }, func(e Env) []error {
		return []error{checkEnvKey(e.Key), checkValue(e.Value), checkDescription(e.Description)}
	})
	each(v, "LABEL", a.Labels, func(p Pair) string { return p.Key }, func(p Pair) []error {
		return []error{checkLabelKey(p.Key), checkValue(p.Value)}
	})
	each(v, "ARG", a.Args, func(p Pair) string { return p.Key }, func(p Pair) []error {
		return []error{checkArgKey(p.Key), checkValue(p.Value)}
	})
	if len(a.Exec) > MaxExec {
		v.check("EXEC", fmt.Errorf("%d arguments, more than %d", len(a.Exec), MaxExec))
	}
	for _, arg := range a.Exec {
		v.check("EXEC", checkValue(arg))
	}
}

// mountOff are the folders that a mount can't be in: those that are read-only to the agent, and
// those of the system that a program takes for the system's.
var mountOff = []string{"etc", "usr", "bin", "sbin", "lib", "lib32", "lib64", "proc", "sys", "dev", "run"}

// mountBelow are the agent's own folders, which a mount may be in but not replace.
var mountBelow = []string{"workspace", "tmp", "home", "home/.config", "home/.cache", "home/.local", "home/.local/share", "var", "var/lib"}

func (v *validator) mounts(list []Mount) {
	var targets []string
	for _, m := range list {
		field := fmt.Sprintf("mount %q", clip(m.Target))
		v.check(field, checkDescription(m.Description), checkMountHost(m.Host))
		target, err := mountTarget(m.Target)
		v.check(field, err)
		if err != nil {
			continue
		}
		for _, other := range targets {
			if target == other || strings.HasPrefix(target, other+"/") || strings.HasPrefix(other, target+"/") {
				v.check(field, fmt.Errorf("it overlaps the mount at %q", other))
			}
		}
		targets = append(targets, target)
	}
	if len(list) > 100 {
		v.check("mount", fmt.Errorf("%d mounts, more than 100", len(list)))
	}
}

func checkMountHost(host string) error {
	switch {
	case !path.IsAbs(host):
		return fmt.Errorf("the host path %q is not absolute", clip(host))
	case path.Clean(host) != strings.TrimRight(host, "/") && host != "/":
		return fmt.Errorf("the host path %q has empty, . or .. parts; write %q", clip(host), path.Clean(host))
	case path.Clean(host) == "/":
		return fmt.Errorf("the host path is the whole file system; name a folder")
	}
	return checkText(host, 4096)
}

// mountTarget is the target relative to the tree's root.
func mountTarget(s string) (string, error) {
	target := strings.TrimPrefix(path.Clean(s), "/")
	first, _, _ := strings.Cut(target, "/")
	switch {
	case s == "" || target == "" || target == ".":
		return "", fmt.Errorf("the target is the root of the agent's tree; name a folder in it, such as workspace/data")
	case slices.Contains(strings.Split(s, "/"), ".."):
		return "", fmt.Errorf("the target has a .. part")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", fmt.Errorf("the target has a control character")
	case slices.Contains(mountOff, first):
		return "", fmt.Errorf("/%s is not the agent's to change; mount in /workspace or in a folder of its own", first)
	case slices.Contains(mountBelow, target):
		return "", fmt.Errorf("/%s is the agent's own folder; mount below it, such as at /%s/data", target, target)
	}
	return target, checkText(target, 4096)
}
