package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"smol-mcp/httpd"
)

const tokenHelp = `  smol-mcp token new NAME     make a token, print it, and add its hash to the file of
                              tokens. It is printed this once and kept nowhere.
  smol-mcp token list         show the names and limits of all tokens of the file
  smol-mcp token remove NAME  take a token out of the file

The file is SMOL_MCP_HTTP_TOKENS_FILE, else tokens beside the usual settings file.
A running server reads it again when it changes: new tokens work at once, other
limits hold from the next call on, and the sessions of tokens that are removed, or
get other targets, end with their machines. While the file is missing or damaged
none of its tokens is accepted. Each token has sessions and machines of its own.
Those that were given a name to be kept stay without it, for the user of this
computer and a new token of its name; other tokens do not see them. Machines that
were not made over HTTP are everybody's.
`

func tokenFlags() []option {
	return []option{
		{"machines", "N", "new: it may have so many machines at once, kept ones among them"},
		{"targets", "A,B", "new: it may use these, of local and cloud"},
		{"tools", "A,B", "new: it may call these tools"},
		{"read-only", "", "new: it may call tools that change nothing"},
	}
}

// runToken makes, lists and removes named tokens.
func runToken(c *call) error {
	wrong := func(what string) error { return &usageError{"token: " + what, usageHint(c.command)} }
	if len(c.args) == 0 {
		return wrong("one of new, list and remove is missing")
	}
	for _, o := range c.command.flags {
		if c.args[0] != "new" && c.has(o.name) {
			return wrong("--" + o.name + " is for new alone")
		}
	}
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	file := tokensFile(&r.Config, os.LookupEnv)
	if file == "" {
		return &settingError{where: "SMOL_MCP_HTTP_TOKENS_FILE", why: "there is no home directory to keep tokens in", hint: "name a file"}
	}
	verb, names := c.args[0], c.args[1:]
	switch {
	case verb == "list" && len(names) == 0:
		return listTokens(c, file)
	case verb == "list":
		return wrong("list takes no name")
	case verb != "new" && verb != "remove":
		return &usageError{fmt.Sprintf("token: %q is none of new, list and remove", verb), hint(verb, []string{"new", "list", "remove"}, usageHint(c.command))}
	case len(names) == 0:
		return wrong(verb + " needs a NAME")
	}
	if err := httpd.CheckTokenName(names[0]); err != nil {
		return wrong(err.Error())
	}
	if verb == "new" {
		return newToken(c, file, names[0])
	}
	return removeToken(file, names[0])
}

// newToken prints a new token once its hash is in the file.
func newToken(c *call, file, name string) error {
	if name == defaultToken {
		return &usageError{"token: the name " + name + " is that of SMOL_MCP_AUTH_TOKEN", "choose another"}
	}
	token := httpd.NewToken()
	line, err := tokenLine(c, httpd.Token{Name: name, Hash: httpd.Hash(token)})
	if err != nil {
		return &usageError{"token: " + err.Error(), usageHint(c.command)}
	}
	err = editTokens(file, func(lines []string) ([]string, error) {
		if slices.ContainsFunc(lines, func(l string) bool { return isTokenOf(l, name) }) {
			return nil, fmt.Errorf("there is a token %s; smol-mcp token remove %s takes it out", name, name)
		}
		return append(lines, line), nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, plain(err))
	}
	_, err = fmt.Fprintln(c.stdout, token)
	fmt.Fprintf(c.stderr, "smol-mcp: token %s is in %s; it is shown this once\n", name, file)
	return err
}

// tokenLine is the line of a new token with the limits of the command line.
func tokenLine(c *call, t httpd.Token) (string, error) {
	words := []string{t.Line()}
	for _, limit := range []string{"machines", "targets", "tools"} {
		if value, given := c.flags[limit]; given {
			words = append(words, limit+"="+value)
		}
	}
	if c.has("read-only") {
		words = append(words, "read-only")
	}
	line := strings.Join(words, " ")
	parsed, err := httpd.ParseTokens(line, vocabulary())
	if err != nil {
		return "", errors.New(strings.TrimPrefix(err.Error(), "line 1: "))
	}
	made := parsed[0]
	made.Targets, made.Tools = distinct(made.Targets), distinct(made.Tools)
	if made.ReadOnly && made.Tools != nil {
		if err := checkReaders(made.Tools); err != nil {
			return "", err
		}
	}
	return made.Line(), nil
}

// distinct are the words without repetitions, in their order; nil stays nil.
func distinct(words []string) []string {
	var all []string
	for _, w := range words {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// checkReaders refuses tools that a token which only reads could never call.
func checkReaders(names []string) error {
	list, err := served()
	if err != nil {
		return err
	}
	var readers, others []string
	for _, t := range list {
		if t.Annotations != nil && t.Annotations.ReadOnlyHint {
			readers = append(readers, t.Name)
		}
	}
	for _, name := range names {
		if !slices.Contains(readers, name) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("--read-only and --tools do not go together here: %s may change something; what only reads is %s", strings.Join(others, ", "), strings.Join(readers, ", "))
	}
	return nil
}

func removeToken(file, name string) error {
	err := editTokens(file, func(lines []string) ([]string, error) {
		kept := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return isTokenOf(l, name) })
		if len(kept) == len(lines) {
			return nil, fmt.Errorf("there is no token %s", name)
		}
		return kept, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, plain(err))
	}
	return nil
}

func listTokens(c *call, file string) error {
	text, err := readTokens(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, plain(err))
	}
	all, err := httpd.ParseTokens(text, vocabulary())
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, t := range all {
		limits := strings.Join(strings.Fields(t.Line())[2:], " ")
		if limits == "" {
			limits = "no limits"
		}
		fmt.Fprintf(w, "%s\t%s\n", t.Name, limits)
	}
	return w.Flush()
}

func isTokenOf(line, name string) bool {
	words := strings.Fields(line)
	return len(words) > 0 && words[0] == name
}

func readTokens(file string) (string, error) {
	info, err := os.Stat(file)
	if err == nil {
		err = httpd.CheckPrivate(info)
	}
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(file)
	return string(text), err
}

// editTokens replaces the file of tokens in one step, so that no server reads half of it.
// Comments stay. Two edits at once: the second fails, and changes nothing.
func editTokens(file string, edit func(lines []string) ([]string, error)) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w (%s); another smol-mcp token may be at work, or was stopped: then remove that file", plain(err), file+".new")
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // it is ours, and of no use
		}
	}()
	text, err := readTokens(file)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = "", nil
	}
	var lines []string
	if err == nil {
		if _, err = httpd.ParseTokens(text, vocabulary()); err == nil {
			lines, err = edit(splitLines(text))
		}
	}
	if err == nil {
		_, err = f.WriteString(strings.Join(append(lines, ""), "\n"))
	}
	if err == nil && runtime.GOOS != "windows" {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

func splitLines(text string) []string {
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
