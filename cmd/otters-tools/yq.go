package main

import "github.com/spf13/pflag"

func yq(c *call, flags *pflag.FlagSet) func([]string) error {
	q := &query{c: c, yaml: true, indent: 2}
	flags.BoolVarP(&q.raw, "raw-output", "r", false, "print strings as they are, without quotes")
	flags.BoolVarP(&q.compact, "compact-output", "c", false, "with -o json: one line for each value")
	flags.BoolVarP(&q.null, "null-input", "n", false, "run the filter once, on null; input and inputs read the files")
	flags.BoolVarP(&q.slurp, "slurp", "s", false, "run the filter once, on an array of all documents")
	flags.BoolVarP(&q.status, "exit-status", "e", false, "exit 1 when the last value is false or null, 4 when there is none")
	flags.StringVarP(&q.filterFile, "from-file", "f", "", "read the filter from `FILE`; every operand is then an input")
	format := flags.StringP("output-format", "o", "yaml", "print `FORMAT`, yaml or json")
	flags.StringArrayVar(&q.args, "arg", nil, "`NAME VALUE`: $NAME is the string VALUE; may be repeated")
	flags.StringArrayVar(&q.jsonArgs, "argjson", nil, "`NAME JSON`: $NAME is the value JSON; may be repeated")
	return func(operands []string) error {
		q.yamlOut = *format == "yaml"
		switch {
		case !q.yamlOut && *format != "json":
			return usageError("-o %s: want yaml or json", *format)
		case q.compact && q.yamlOut:
			return usageError("-c: only together with -o json")
		}
		return q.run(operands)
	}
}
