package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Exit codes; --help and README list them. A server that a signal ended
// exits with exitSignal plus the number of the signal, after its clean-up.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 128
)

// command is one word of the command line. The one without a name is the
// server.
type command struct {
	name    string
	summary string // one line, no full stop; empty hides the command from help
	help    string
	flags   []option
	args    string // names of arguments it takes, as "[FILE]"; empty: none
	run     func(*call) error
	program string // of which it is all; empty: a word of smol-mcp
}

// option is a flag, with two dashes. Every command takes the common ones.
type option struct {
	name  string
	value string // placeholder of its value; empty for a switch
	help  string
}

// call is a command with what was given to it.
type call struct {
	command
	flags  map[string]string
	args   []string
	stdin  *os.File
	stdout io.Writer
	stderr io.Writer
}

// has reports whether a flag was given.
func (c *call) has(name string) bool {
	_, ok := c.flags[name]
	return ok
}

// commands lists the commands in the order of help.
func commands() []command {
	return []command{
		{run: runServe},
		{name: "http", summary: "serve many clients over HTTP, each with a token", help: httpHelp, flags: httpFlags(), run: runHTTP},
		{name: "token", summary: "make, list and remove the tokens of HTTP clients", help: tokenHelp, flags: tokenFlags(), args: "new|list|remove [NAME]", run: runToken},
		{name: "config", summary: "print every setting, its value and where the value came from", flags: []option{optJSON}, run: runConfig},
		{name: "parity", summary: "compare the engine's or the cloud's API with what this program knows", help: parityHelp, flags: parityFlags(), run: runParity},
		{name: "status", summary: "show processes, sessions and machines, and what will become of each", help: statusHelp, flags: statusFlags(), run: runStatus},
		{name: "gc", summary: "delete what ended sessions left", help: gcHelp, flags: gcFlags(), run: runGC},
		{name: "setup", summary: "get what is missing to run machines on this computer", help: setupHelp, flags: setupFlags(), run: runSetup},
		{name: "doctor", summary: "look at all that machines need, with a remedy for what is not well", help: doctorHelp, flags: []option{optJSON}, run: runDoctor},
		{name: "try", summary: "make a machine, use it and delete it, as an agent would", help: tryHelp, flags: tryFlags(), run: runTry},
		{name: "docs", help: docsHelp, args: "[README.md]", run: runDocs},
		{name: "help", summary: "explain a command", args: "[COMMAND]", run: runHelp},
	}
}

var (
	optJSON   = option{"json", "", "print JSON"}
	optCommon = []option{
		{"config", "FILE", "read settings from FILE instead of the usual place"},
		{"help", "", "explain the program or a command; also -h"},
		{"version", "", "print the version"},
	}
)

// usageError is a command line that makes no sense.
type usageError struct{ what, hint string }

func (e *usageError) Error() string { return e.what }

// exitCode is an error that only sets the exit code: everything has been
// said.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Main is smol-mcp: it carries out its command line and returns the exit code.
func Main() int { return run(commands()[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }

// MainHTTP is smol-mcp-http, which is smol-mcp http under the name that it used to have.
func MainHTTP() int {
	return run(httpProgram(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

func httpProgram() command {
	all := commands()
	http := all[slices.IndexFunc(all, func(k command) bool { return k.name == "http" })]
	http.program = "smol-mcp-http"
	return http
}

// run carries out a command line that begins at a command. Errors are told
// here and nowhere else: the program's name, no capital, no full stop, and a
// line with a hint where we have one.
func run(start command, args []string, stdin *os.File, stdout, stderr io.Writer) int {
	c, err := parse(start, args)
	if err == nil {
		c.stdin, c.stdout, c.stderr = stdin, stdout, stderr
		err = dispatch(c)
	}
	var code exitCode
	var usage *usageError
	var setting *settingError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		say(stderr, usage.what, usage.hint)
		return exitUsage
	case errors.As(err, &setting):
		say(stderr, setting.Error(), setting.hint)
		return exitUsage
	}
	say(stderr, err.Error(), "")
	return exitFailure
}

func say(w io.Writer, what, hint string) {
	fmt.Fprintf(w, "smol-mcp: %s\n", what)
	if hint != "" {
		fmt.Fprintf(w, "smol-mcp: hint: %s\n", hint)
	}
}

func dispatch(c *call) error {
	switch {
	case c.has("help"):
		return printHelp(c.stdout, c.command)
	case c.has("version"):
		_, err := fmt.Fprintln(c.stdout, cmp.Or(c.program, "smol-mcp"), fullVersion())
		return err
	}
	return c.run(c)
}

// parse reads a command line: flags and arguments in any order, "--" ends the
// flags. Where it begins at the command without a name, the first argument is the command.
func parse(start command, args []string) (*call, error) {
	c := &call{command: start, flags: map[string]string{}}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			for _, rest := range args[i+1:] {
				if err := c.argument(rest); err != nil {
					return nil, err
				}
			}
			return c, nil
		case arg == "-h":
			arg = "--help"
			fallthrough
		case len(arg) > 1 && arg[0] == '-':
			used, err := c.flag(arg, args[i+1:])
			if err != nil {
				return nil, err
			}
			i += used
		default:
			if err := c.argument(arg); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// argument takes a word that is not a flag.
func (c *call) argument(arg string) error {
	if c.name == "" {
		i := slices.IndexFunc(commands(), func(k command) bool { return k.name == arg && arg != "" })
		if i < 0 {
			return &usageError{fmt.Sprintf("unknown command %q", arg), commandHint(arg)}
		}
		c.command = commands()[i]
		return nil
	}
	if len(c.args) >= len(strings.Fields(c.command.args)) {
		return &usageError{fmt.Sprintf("%s: unexpected argument %q", c.name, arg), usageHint(c.command)}
	}
	c.args = append(c.args, arg)
	return nil
}

// flag takes a flag, and its value from rest when it is not part of arg; it
// returns how many words of rest it used.
func (c *call) flag(arg string, rest []string) (used int, err error) {
	name, value, joined := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
	known := append(slices.Clone(c.command.flags), optCommon...)
	i := slices.IndexFunc(known, func(o option) bool { return o.name == name && strings.HasPrefix(arg, "--") })
	if i < 0 {
		names := make([]string, len(known))
		for k, o := range known {
			names[k] = "--" + o.name
		}
		shown, _, _ := strings.Cut(arg, "=")
		likely := hint(shown, names, usageHint(c.command))
		if shown == "-v" || shown == "-V" {
			likely = versionHint
		}
		return 0, &usageError{strings.TrimPrefix(fmt.Sprintf("%s: unknown flag %s", c.name, shown), ": "), likely}
	}
	switch o := known[i]; {
	case o.value == "" && joined:
		return 0, &usageError{fmt.Sprintf("--%s takes no value", name), usageHint(c.command)}
	case o.value != "" && !joined:
		if len(rest) == 0 {
			return 0, &usageError{fmt.Sprintf("--%s needs a value, %s", name, o.value), usageHint(c.command)}
		}
		value, used = rest[0], 1
	}
	if known[i].value != "" && value == "" {
		return 0, &usageError{fmt.Sprintf("--%s needs a value, %s", name, known[i].value), usageHint(c.command)}
	}
	if known[i].value != "" && c.has(name) {
		return 0, &usageError{fmt.Sprintf("--%s stands twice", name), "one of the two has to go"}
	}
	c.flags[name] = value
	return used, nil
}

func commandNames() []string {
	var names []string
	for _, k := range commands() {
		if k.summary != "" {
			names = append(names, k.name)
		}
	}
	return names
}
