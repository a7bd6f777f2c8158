package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// format is the value of --format.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

func (f *format) Set(s string) error {
	if s != string(formatTable) && s != string(formatJSON) {
		return fmt.Errorf("want table or json")
	}
	*f = format(s)
	return nil
}

func addFormat(cmd *cobra.Command, f *format) {
	*f = formatTable
	cmd.Flags().Var(f, "format", "table or json")
	// The flag was just defined, so registering its values can't fail.
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// jsonHelp documents what --format json prints of v, a struct of json.go.
func jsonHelp(what string, v any) string {
	return "\n\nWith --format json it prints " + what + ", of which no field is ever renamed or removed:\n" +
		strings.Join(jsonFields(reflect.TypeOf(v)), ", ") + ".\nTimes are RFC 3339 in UTC, and empty where they are not known."
}

func jsonFields(t reflect.Type) []string {
	var out []string
	for f := range t.Fields() {
		if f.Anonymous {
			out = append(out, jsonFields(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := f.Type
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct {
			name += " (" + strings.Join(jsonFields(of), ", ") + ")"
		}
		out = append(out, name)
	}
	return out
}

// printJSON prints v indented. The fields of what is printed are API: none is renamed or removed.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable prints rows under their titles; cells are made harmless.
func printTable(w io.Writer, titles []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	l := lines{w: t}
	for _, row := range append([][]string{titles}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = neutral(cell, false)
		}
		l.printf("%s\n", strings.Join(cells, "\t"))
	}
	if l.err != nil {
		return l.err
	}
	return t.Flush()
}

// pair is a line of a description; a pair without a name goes on with the one before.
type pair struct{ name, value string }

// printPairs prints names and values in two columns, leaving out those without a value.
func printPairs(w io.Writer, pairs []pair) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	l := lines{w: t}
	for _, p := range pairs {
		if p.value != "" {
			l.printf("%s\t%s\n", p.name, neutral(p.value, false))
		}
	}
	if l.err != nil {
		return l.err
	}
	return t.Flush()
}

// list makes pairs of several values under one name.
func list(name string, values []string) []pair {
	var out []pair
	for _, v := range values {
		out = append(out, pair{name, v})
		name = ""
	}
	return out
}

// millis is a time of the API as RFC 3339 in UTC, nothing for none.
func millis(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// age tells how long ago a moment was, in its largest unit.
func age(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
