package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

const intro = `Usage: smol-mcp [--config FILE] [COMMAND]

Without a command smol-mcp is an MCP server on standard input and output, to
be started by an MCP client. It gives agents machines of their own.

Commands:
`

const outro = `
Settings come from the environment, over the file, over the defaults;
"smol-mcp config" lists them. The file is the one of --config, of
SMOL_MCP_CONFIG (empty: none), or $XDG_CONFIG_HOME/smol-mcp/config.json, where
XDG_CONFIG_HOME is ~/.config when unset.

Exit codes:
  0    the command succeeded; the server's client went away in order
  1    failure; after a server: clean-up was not finished, a later start does it
  2    wrong usage or settings; nothing was started
  129  the server was ended by SIGHUP and cleaned up
  130  the same by SIGINT; a second one quits without waiting
  143  the same by SIGTERM; a second one quits without waiting
`

func runHelp(c *call) error {
	if len(c.args) == 0 {
		return printHelp(c.stdout, commands()[0])
	}
	all := commands()
	i := slices.IndexFunc(all, func(k command) bool { return k.name == c.args[0] })
	if i <= 0 {
		return &usageError{fmt.Sprintf("unknown command %q", c.args[0]), commandHint(c.args[0])}
	}
	return printHelp(c.stdout, all[i])
}

// printHelp explains a command, or the program when it is the one without a
// name.
func printHelp(w io.Writer, k command) error {
	var b strings.Builder
	if k.name == "" {
		b.WriteString(intro)
		for _, k := range commands() {
			if k.summary != "" {
				fmt.Fprintf(&b, "  %-8s %s\n", k.name, k.summary)
			}
		}
	} else {
		fmt.Fprintf(&b, "Usage: %s\n", usage(k))
		if k.summary != "" {
			fmt.Fprintf(&b, "\n%s.\n", strings.ToUpper(k.summary[:1])+k.summary[1:])
		}
		if k.help != "" {
			fmt.Fprintf(&b, "\n%s", k.help)
		}
	}
	b.WriteString("\nFlags:\n")
	flags, width := append(slices.Clone(k.flags), optCommon...), 0
	for _, o := range flags {
		width = max(width, len(o.words()))
	}
	for _, o := range flags {
		fmt.Fprintf(&b, "  --%-*s  %s\n", width, o.words(), o.help)
	}
	if k.name == "" {
		b.WriteString(outro)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// words are the flag's name and the placeholder of its value.
func (o option) words() string { return strings.TrimSpace(o.name + " " + o.value) }

func usage(k command) string {
	words := []string{cmp.Or(k.program, strings.TrimSpace("smol-mcp "+k.name))}
	for _, o := range k.flags {
		words = append(words, "[--"+o.words()+"]")
	}
	if k.args != "" {
		words = append(words, k.args)
	}
	return strings.Join(words, " ")
}

func usageHint(k command) string {
	if k.name == "" {
		return "smol-mcp --help explains the flags"
	}
	return "usage: " + usage(k)
}
