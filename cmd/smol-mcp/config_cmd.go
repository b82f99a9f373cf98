package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
)

// runConfig prints every setting, its value and where the value came from.
func runConfig(c *call) error {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	table := settings(&r.Config)
	if c.has("json") {
		return printConfigJSON(c, r, table)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for i, s := range table {
		value := s.print()
		if value == "" {
			value = "(empty)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.key, value, r.origins[i])
	}
	return w.Flush()
}

func printConfigJSON(c *call, r *resolved, table []setting) error {
	type row struct {
		Key   string `json:"key"`
		Env   string `json:"env"`
		Value any    `json:"value"`
		From  origin `json:"from"`
	}
	out := struct {
		File     string `json:"file"` // empty: none was read
		Settings []row  `json:"settings"`
	}{File: r.file}
	for i, s := range table {
		value := s.load()
		switch v := value.(type) {
		case string:
			value = s.print()
		case []string:
			value = append([]string{}, v...)
		}
		out.Settings = append(out.Settings, row{s.key, s.env, value, r.origins[i]})
	}
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
