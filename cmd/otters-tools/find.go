package main

import (
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// filter is what a file must be for find to print it.
type filter struct {
	name, fold string // globs; empty is any
	kind       string // f, d, l; empty is any
	min, max   int    // depth below the path that was given, which is 0
}

func findFiles(c *call, _ *pflag.FlagSet) func([]string) error {
	return func(args []string) error {
		paths, f, err := parseFind(args)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if err := f.walk(c, path); err != nil {
				return err
			}
		}
		return nil
	}
}

func parseFind(args []string) (paths []string, f filter, err error) {
	f.max = math.MaxInt
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		paths, args = append(paths, args[0]), args[1:]
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	for ; len(args) > 0; args = args[2:] {
		if len(args) == 1 {
			args = append(args, "")
		}
		if err := f.set(args[0], args[1]); err != nil {
			return nil, f, err
		}
	}
	return paths, f, nil
}

func (f *filter) set(test, value string) error {
	var err error
	switch test {
	case "-name":
		f.name, err = value, badGlob(value)
	case "-iname":
		f.fold, err = strings.ToLower(value), badGlob(value)
	case "-type":
		f.kind = value
		if len(value) != 1 || !strings.Contains("fdl", value) {
			err = fmt.Errorf("want f (file), d (folder) or l (link)")
		}
	case "-mindepth":
		f.min, err = depth(value)
	case "-maxdepth":
		f.max, err = depth(value)
	default:
		return usageError("unknown test: %s", test)
	}
	if err != nil {
		return usageError("%s %s: %v", test, value, err)
	}
	return nil
}

func depth(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("want a whole number, 0 or more")
	}
	return n, nil
}

func badGlob(pattern string) error {
	if pattern == "" {
		return fmt.Errorf("want a pattern such as '*.json'")
	}
	_, err := filepath.Match(pattern, "")
	return err
}

func (f filter) walk(c *call, root string) error {
	clean := filepath.Clean(root)
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			c.fail(path, err)
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		level := 0
		if rel, err := filepath.Rel(clean, path); err == nil && rel != "." {
			level = strings.Count(rel, string(filepath.Separator)) + 1
		}
		if level >= f.min && level <= f.max && f.matches(path, d) {
			if _, err := fmt.Fprintln(c.stdout, path); err != nil {
				return err
			}
		}
		if d.IsDir() && level >= f.max {
			return fs.SkipDir
		}
		return nil
	})
}

func (f filter) matches(path string, d fs.DirEntry) bool {
	base := filepath.Base(path)
	switch f.kind {
	case "f":
		if !d.Type().IsRegular() {
			return false
		}
	case "d":
		if !d.IsDir() {
			return false
		}
	case "l":
		if d.Type()&fs.ModeSymlink == 0 {
			return false
		}
	}
	return (f.name == "" || globs(f.name, base)) && (f.fold == "" || globs(f.fold, strings.ToLower(base)))
}

// globs takes a pattern that was checked before.
func globs(pattern, name string) bool {
	ok, err := filepath.Match(pattern, name)
	return err == nil && ok
}
