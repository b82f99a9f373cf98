package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// settingError is a setting that cannot be used: where it stands and what is
// wrong with it.
type settingError struct {
	where string // a variable, or a key of a file
	why   string
	hint  string
}

func (e *settingError) Error() string { return e.where + ": " + e.why }

// origin is where the value of a setting came from, for people: "default",
// "file PATH" or "env NAME".
type origin string

// resolved is a Config and where each value came from, in the order of
// settings.
type resolved struct {
	Config
	file    string // that was read; empty: none
	origins []origin
}

// lookup is os.LookupEnv.
type lookup func(name string) (string, bool)

// resolve reads the settings: environment over file over default. A variable
// that exists and is empty clears what the file says: to empty where that is a
// value, else to the default. flagFile is the --config file, or empty.
func resolve(env lookup, flagFile string) (*resolved, error) {
	r := new(resolved)
	table := settings(&r.Config)
	r.origins = make([]origin, len(table))
	wheres := make([]string, len(table))
	for i, s := range table {
		s.set(s.kind.initial())
		r.origins[i], wheres[i] = "default", s.env+" ("+s.key+")"
	}
	path, named, err := configFile(env, flagFile)
	if err != nil {
		return nil, err
	}
	data, open, err := readConfig(path, named)
	if err != nil {
		return nil, err
	}
	if data != nil {
		r.file = path
		entries, err := parseConfig(path, data)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			i, err := e.apply(table)
			if err != nil {
				return nil, err
			}
			if open != nil && table[i].secret() && table[i].load() != "" {
				return nil, &settingError{where: e.where(), why: open.Error(), hint: "or leave it out and set " + table[i].env}
			}
			r.origins[i], wheres[i] = origin("file "+path), e.where()
		}
	}
	for i, s := range table {
		value, ok := env(s.env)
		if !ok {
			continue
		}
		v, err := s.kind.parse(value)
		if err != nil {
			return nil, &settingError{where: s.env, why: err.Error(), hint: s.help}
		}
		s.set(v)
		r.origins[i], wheres[i] = origin("env "+s.env), s.env
	}
	if key, err := r.checkTogether(); err != nil {
		for i, s := range table {
			if s.key == key {
				return nil, &settingError{where: wheres[i], why: err.Error()}
			}
		}
	}
	return r, nil
}

// override sets settings from flags of the command line; names maps flags to keys.
func (r *resolved) override(flags, names map[string]string) error {
	table := settings(&r.Config)
	for i, s := range table {
		for flag, key := range names {
			value, given := flags[flag]
			if s.key != key || !given {
				continue
			}
			v, err := s.kind.parse(value)
			if err != nil {
				return &settingError{where: "--" + flag, why: err.Error(), hint: s.help}
			}
			s.set(v)
			r.origins[i] = origin("flag --" + flag)
		}
	}
	return nil
}

// configFile tells which file to read: the flag's, the one of SMOL_MCP_CONFIG
// (empty: none at all), or the usual one, which need not exist.
func configFile(env lookup, flagFile string) (path string, named bool, err error) {
	if flagFile != "" {
		return flagFile, true, nil
	}
	if p, ok := env("SMOL_MCP_CONFIG"); ok {
		return p, p != "", nil
	}
	return configHome(env, "smol-mcp", "config.json"), false, nil
}

// maxConfig bounds the size of the file in bytes.
const maxConfig = 1 << 20

// readConfig returns nil for a file that is absent and need not exist. open says
// why no secret may stand in it.
func readConfig(path string, named bool) (data []byte, open, err error) {
	if path == "" {
		return nil, nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, unreadable(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		open = checkPrivate(info)
	}
	data, err = io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, nil, unreadable(path, err)
	}
	if len(data) > maxConfig {
		return nil, nil, unreadable(path, fmt.Errorf("it is larger than %d bytes", maxConfig))
	}
	return bytes.TrimPrefix(data, []byte("\ufeff")), open, nil
}

func unreadable(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return &settingError{where: path, why: "cannot read the settings: " + err.Error(), hint: "the file is named by --config or SMOL_MCP_CONFIG, else it is config.json in $XDG_CONFIG_HOME/smol-mcp"}
}

// entry is one key of the file.
type entry struct {
	path  string
	line  int
	key   string
	value []byte
}

func (e entry) where() string { return fmt.Sprintf("%s:%d: %s", e.path, e.line, e.key) }

// apply stores an entry in its setting, whose place in table it returns.
func (e entry) apply(table []setting) (int, error) {
	keys := make([]string, len(table))
	for i, s := range table {
		if keys[i] = s.key; s.key != e.key {
			continue
		}
		v, err := s.kind.decode(e.value)
		if err != nil {
			return 0, &settingError{where: e.where(), why: err.Error(), hint: s.help}
		}
		s.set(v)
		return i, nil
	}
	return 0, &settingError{where: e.where(), why: "unknown setting", hint: hint(e.key, keys, "smol-mcp help config tells how to list them")}
}

// parseConfig splits the file, a flat JSON object, into its entries.
func parseConfig(path string, data []byte) ([]entry, error) {
	fail := func(offset int64, why string) error {
		line, column := position(data, offset)
		return &settingError{where: fmt.Sprintf("%s:%d:%d", path, line, column), why: why, hint: `the file is one JSON object, as {"cpus": 4}`}
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(data, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, fail(syntax.Offset-1, "not JSON: "+syntax.Error())
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if first, _ := dec.Token(); first != json.Delim('{') {
		return nil, fail(0, "must be a JSON object")
	}
	var entries []entry
	seen := map[string]int{}
	for dec.More() {
		key, _ := dec.Token() // data is valid JSON, so these cannot fail
		offset := dec.InputOffset() - 1
		e := entry{path: path, key: key.(string)}
		e.line, _ = position(data, offset)
		if line, ok := seen[e.key]; ok {
			return nil, &settingError{where: e.where(), why: fmt.Sprintf("stands a second time; it is also in line %d", line)}
		}
		seen[e.key] = e.line
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fail(offset, err.Error())
		}
		e.value = value
		entries = append(entries, e)
	}
	return entries, nil
}

// position is the line and column, from 1 and in bytes, of an offset.
func position(data []byte, offset int64) (line, column int) {
	before := data[:max(0, min(offset, int64(len(data))))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
}
