package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// runConfig prints every setting, its value and where the value came from.
func runConfig(c *call) error {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	table := settings(&r.Config)
	for _, stray := range strays(os.Environ(), table) {
		say(c.stderr, stray+" is set and is no setting of this build", "")
	}
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

// strays returns the variables that look like settings and are none, which
// are easily typing errors.
func strays(environ []string, table []setting) []string {
	var found []string
	for _, word := range environ {
		name, _, _ := strings.Cut(word, "=")
		known := name == "SMOL_MCP_CONFIG" || slices.ContainsFunc(table, func(s setting) bool { return s.env == name })
		if (strings.HasPrefix(name, "SMOL_MCP_") || strings.HasPrefix(name, "SMOL_CLOUD_")) && !known {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
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
