//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// row is one figure, and what it is held against.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Against names the row that Ratio divides by.
	Against string  `json:"against,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	// Aim is what the figure is meant to be, and Met whether it is.
	Aim string `json:"aim,omitempty"`
	Met *bool  `json:"met,omitempty"`
	// P50 and P99 are quantiles of one request, in milliseconds.
	P50 float64 `json:"p50_ms,omitempty"`
	P99 float64 `json:"p99_ms,omitempty"`
}

// over makes r a ratio to a floor, with an aim of at most most times it.
func (r row) over(floor row, most float64) row {
	r.Against, r.Ratio = floor.Name, r.Value/floor.Value
	r.Aim = fmt.Sprintf("at most %gx", most)
	met := r.Ratio <= most
	r.Met = &met
	return r
}

// atLeast makes r a ratio to another rate, with an aim of at least least times it.
func (r row) atLeast(other row, least float64) row {
	r.Against, r.Ratio = other.Name, r.Value/other.Value
	r.Aim = fmt.Sprintf("at least %gx", least)
	met := r.Ratio >= least
	r.Met = &met
	return r
}

// beside makes r a ratio to another row, without an aim.
func (r row) beside(other row) row {
	r.Against, r.Ratio = other.Name, r.Value/other.Value
	return r
}

// under gives r an aim in its own unit.
func (r row) under(most float64) row {
	r.Aim = fmt.Sprintf("under %g %s", most, r.Unit)
	met := r.Value < most
	r.Met = &met
	return r
}

func print(w io.Writer, title string, rows []row, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		for _, r := range rows {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Fprintf(w, "%s\n", title)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  name\tvalue\tunit\tratio\tagainst\taim\tmet\tp50 ms\tp99 ms")
	for _, r := range rows {
		ratio, met, p50, p99 := "", "", "", ""
		if r.P50 != 0 {
			p50, p99 = fmt.Sprintf("%.2f", r.P50), fmt.Sprintf("%.2f", r.P99)
		}
		if r.Ratio != 0 {
			ratio = fmt.Sprintf("%.2fx", r.Ratio)
		}
		if r.Met != nil {
			met = map[bool]string{true: "yes", false: "no"}[*r.Met]
		}
		fmt.Fprintf(tw, "  %s\t%.3f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, ratio, r.Against, r.Aim, met, p50, p99)
	}
	return tw.Flush()
}

// samples are durations of one thing.
type samples []time.Duration

// quantile is the sample at q, between 0 and 1.
func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (s samples) row(name string, q float64) row {
	return row{Name: name, Value: ms(s.quantile(q)), Unit: "ms"}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
