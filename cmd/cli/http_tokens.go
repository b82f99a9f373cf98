package cli

import (
	"errors"
	"io/fs"
	"log/slog"
	"strings"

	"smol-mcp/httpd"
	"smol-mcp/tools"
)

// defaultToken is the name of the token that stands in the settings.
const defaultToken = "default"

// vocabulary is what the limits of tokens may name.
func vocabulary() httpd.Vocabulary {
	return httpd.Vocabulary{Targets: []string{"local", "cloud"}, Tools: tools.ToolNames()}
}

// httpTokens are the tokens that the settings name; an error when there is none.
func httpTokens(c *Config, env lookup, log *slog.Logger) (*httpd.Tokens, error) {
	token, where, err := authToken(c)
	if err != nil {
		return nil, err
	}
	var fixed []httpd.Token
	if token != "" {
		if httpd.IsShort(token) {
			log.Warn("the token is so short that it may be guessed; smol-mcp token new NAME makes long ones", "setting", where)
		}
		fixed = append(fixed, httpd.Token{Name: defaultToken, Hash: httpd.Hash(token)})
	}
	file := tokensFile(c, env)
	read := httpd.WatchTokens // smol-mcp token may make the usual one at any time
	if c.HTTPTokensFile != "" {
		read = httpd.NewTokens
	}
	all, err := read(file, vocabulary(), fixed...)
	if err != nil {
		return nil, &settingError{where: file, why: "the tokens cannot be read: " + plain(err).Error(), hint: "each line is a name, sha256: with 64 digits, and limits; smol-mcp token new NAME writes one"}
	}
	if all.Count() == 0 {
		return nil, &settingError{where: "SMOL_MCP_AUTH_TOKEN (authToken)", why: "there is no token, and whoever has one can run commands in machines of this computer",
			hint: "smol-mcp token new NAME makes one, or set SMOL_MCP_AUTH_TOKEN or SMOL_MCP_AUTH_TOKEN_FILE"}
	}
	return all, nil
}

// authToken is the token of the settings and where it stands; empty when there is none.
func authToken(c *Config) (token, where string, err error) {
	if c.AuthTokenFile == "" {
		return c.AuthToken, "SMOL_MCP_AUTH_TOKEN", nil
	}
	where = "SMOL_MCP_AUTH_TOKEN_FILE"
	text, _, err := readSecret(c.AuthTokenFile)
	if err == nil {
		token = strings.TrimSpace(string(text))
		err = httpd.CheckToken(token)
	}
	if err != nil {
		return "", "", &settingError{where: where + " " + c.AuthTokenFile, why: "the token cannot be read: " + plain(err).Error(), hint: "the file has the token and nothing else in it"}
	}
	return token, where, nil
}

// tokensFile is the file of named tokens: the one of the settings, else the usual one.
func tokensFile(c *Config, env lookup) string {
	if c.HTTPTokensFile != "" {
		return c.HTTPTokensFile
	}
	return configHome(env, "smol-mcp", "tokens")
}

// plain is an error without the path and the operation, which are said elsewhere.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
