package httpd_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/httpd"
)

func TestParseTokens(t *testing.T) {
	known := httpd.Vocabulary{Targets: []string{"local", "cloud"}, Tools: []string{"get-machine", "run-command"}}
	token := httpd.Token{Name: "ci-1", Hash: httpd.Hash("x"), Machines: 3, Targets: []string{"local"}, Tools: []string{"get-machine", "run-command"}, ReadOnly: true}
	good := token.Line()
	all, err := httpd.ParseTokens("# who\n\n  "+good+"  \r\n", known)
	if err != nil || len(all) != 1 || all[0].Line() != good || all[0].Machines != 3 || !all[0].ReadOnly {
		t.Fatalf("%q: %+v %v", good, all, err)
	}
	plain := httpd.Token{Name: "b", Hash: httpd.Hash("y")}.Line()
	for text, why := range map[string]string{
		good + "\n" + good: "line 2: there is a token ci-1 above",
		plain + "\n" + strings.Replace(plain, "b ", "c ", 1): "line 2: another name above has the same token",
		"b":                            "the hash",
		"b sha256:12":                  "64 hexadecimal",
		"b md5:" + plain[9:]:           "64 hexadecimal",
		"ü " + plain[2:]:               "is no name",
		plain + " machines=0":          "1 to 100000",
		plain + " machines":            "is none of",
		plain + " machines=x":          "1 to 100000",
		plain + " read-only=false":     "is none of",
		plain + " targets=mars":        `"mars" is none of local, cloud`,
		plain + " targets=":            "is none of",
		plain + " tools=rm":            `"rm" is none of`,
		plain + " read-only read-only": "stands twice",
		plain + " admin":               "is none of",
	} {
		if _, err := httpd.ParseTokens(text, known); err == nil || !strings.Contains(err.Error(), why) || !strings.HasPrefix(err.Error(), "line ") {
			t.Errorf("%q: %v, want %s", text, err, why)
		}
	}
}

// tokensOf is a file with a token of each name, and what is accepted by it beside the token
// of the settings.
func tokensOf(t testing.TB, names ...string) (file string, tokens *httpd.Tokens) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tokens")
	write(t, file, lines(names)...)
	tokens, err := httpd.NewTokens(file, httpd.Vocabulary{Targets: []string{"local", "cloud"}}, httpd.Token{Name: "default", Hash: httpd.Hash(right)})
	if err != nil {
		t.Fatal(err)
	}
	return file, tokens
}

func lines(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, tokenLine(name, ""))
	}
	return all
}

// holder is a client with the token of that name.
func (r *rig) holder(name string) *client { return &client{rig: r, token: "token-" + name} }

// works reports whether a token of the file opens a session; that of the settings always has to.
func (r *rig) works(name string) bool {
	r.t.Helper()
	if p := r.client().post(initialize, "Mcp-Protocol-Version", ""); p.status != 200 {
		r.t.Fatalf("the token of the settings: %d %s", p.status, p.body)
	}
	return r.holder(name).post(initialize).status == 200
}

// The file of tokens holds as it stands: new tokens work and removed ones do not.
func TestTokensFile(t *testing.T) {
	file, tokens := tokensOf(t, "one")
	if _, err := httpd.NewTokens(file, httpd.Vocabulary{}, httpd.Token{Name: "one"}); err == nil {
		t.Error("a name of the settings is in the file, too")
	}
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, time.Hour }) // looked at with each request
	if !r.works("one") || r.works("two") {
		t.Fatal("the file as it was at the start does not hold")
	}
	write(t, file, lines([]string{"one", "two"})...)
	eventually(t, "a new token works", func() bool { return r.works("two") })
	session := r.holder("two").open()
	write(t, file, lines([]string{"one"})...)
	eventually(t, "a removed token does not work", func() bool { return !r.works("two") })
	if p := session.call("echo", `{}`); p.status != http.StatusUnauthorized {
		t.Errorf("its session: %d", p.status)
	}
}

// A file that cannot be used opens nothing, and says why; what is open is not ended for it,
// since that would take machines away, and works again when the file does.
func TestDamagedTokens(t *testing.T) {
	file, tokens := tokensOf(t, "one", "two")
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, idleTime })
	session := r.holder("one").open()
	kept := r.opened[0]
	kept.busy.Store(true)
	damages := map[string]func(){"line 2": func() { write(t, file, tokenLine("one", ""), "two sha2") },
		"no regular file": func() {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}}
	if runtime.GOOS != "windows" { // where modes do not say who may write a file
		damages["chmod"] = func() {
			if err := os.Chmod(file, 0o622); err != nil {
				t.Fatal(err)
			}
		}
	}
	for why, damage := range damages {
		damage()
		eventually(t, "it is told of", func() bool { r.works("one"); return len(r.log.lines("cannot be used", "none of its tokens", why)) == 1 })
		if r.works("one") || r.works("two") {
			t.Errorf("%s: it opens a session", why)
		}
		if p := session.call("echo", `{}`); p.status != http.StatusUnauthorized {
			t.Errorf("%s: a call in a session: %d", why, p.status)
		}
		seen := kept.reviewed.Load()
		eventually(t, "all sessions are looked at", func() bool { return kept.reviewed.Load() >= seen+2 })
		_ = os.Remove(file) // also a directory
		write(t, file, lines([]string{"one", "two"})...)
		eventually(t, "it works again", func() bool { return r.works("two") })
		if p := session.call("echo", `{}`); p.status != 200 {
			t.Errorf("%s: the session afterwards: %d %s", why, p.status, p.body)
		}
	}
	if n := len(r.log.lines("cannot be used")); n != len(damages) {
		t.Errorf("it was told %d times", n)
	}
}

// A file that is deleted takes its tokens with it, and ends what they have open.
func TestDeletedTokens(t *testing.T) {
	file, tokens := tokensOf(t, "one")
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, idleTime })
	c := r.holder("one").open()
	c.stream("POST", c.body("work", `{}`))
	within(t, "the call", r.started)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its token does not work", func() bool { return !r.works("one") })
	if err := within(t, "the end of the call", r.stopped); err == nil || err.Error() != "over" {
		t.Errorf("the call ended with %v", err)
	}
	eventually(t, "the session ends", func() bool { return len(r.log.lines("session ended", "principal=one", "why=token")) == 1 })
	if n := len(r.log.lines("cannot be used", "it is missing")); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	write(t, file, tokenLine("one", ""))
	eventually(t, "a new file works", func() bool { return r.works("one") })
}

// The usual file may be made while the server runs, and a named one has to be there.
func TestTokensMadeLater(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	settings := httpd.Token{Name: "default", Hash: httpd.Hash(right)}
	if _, err := httpd.NewTokens(file, httpd.Vocabulary{}, settings); !os.IsNotExist(err) {
		t.Errorf("a file that has to be there: %v", err)
	}
	tokens, err := httpd.WatchTokens(file, httpd.Vocabulary{}, settings)
	if err != nil || tokens.Count() != 1 {
		t.Fatalf("%d tokens, %v", tokens.Count(), err)
	}
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, time.Hour })
	if r.works("one") {
		t.Error("there is no such token yet")
	}
	write(t, file, tokenLine("one", ""))
	eventually(t, "a new token works", func() bool { return r.works("one") })
	if n := len(r.log.lines("cannot be used")); n != 0 {
		t.Errorf("that there was no file was told %d times", n)
	}
	write(t, file, "one")
	if _, err := httpd.WatchTokens(file, httpd.Vocabulary{}, settings); err == nil {
		t.Error("a damaged file is accepted")
	}
}

// What a token may do changes under its sessions, from their next call on. One that is removed, or
// is for other targets, ends them.
func TestRevoked(t *testing.T) {
	names := []string{"kept", "gone", "less", "elsewhere"}
	file, tokens := tokensOf(t, names...)
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, 5*time.Second })
	clients := map[string]*client{}
	for _, name := range names {
		clients[name] = r.holder(name).open()
	}
	write(t, file, tokenLine("kept", " machines=3"), tokenLine("less", " read-only"), tokenLine("elsewhere", " targets=cloud"))
	ended := map[string]bool{}
	for range 2 {
		ended[within(t, "an end", r.cleaned).Token.Name] = true
	}
	if !ended["gone"] || !ended["elsewhere"] {
		t.Errorf("ended: %v", ended)
	}
	for name, status := range map[string]int{"kept": 200, "less": 200, "gone": 401, "elsewhere": 404} {
		if p := clients[name].call("echo", `{}`); p.status != status {
			t.Errorf("%s: %d %s", name, p.status, p.body)
		}
	}
	if now := r.opened[0].Current(); now.Machines != 3 {
		t.Errorf("kept: %+v", now)
	}
	if now := r.opened[2].Current(); !now.ReadOnly {
		t.Errorf("less: %+v", now)
	}
}

// The last tokens are revoked as any other, and what they have open ends; with no token of the
// settings either, nobody gets in.
func TestLastTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, tokenLine("last", ""))
	tokens, err := httpd.NewTokens(file, httpd.Vocabulary{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, 5*time.Second })
	c := r.holder("last").open()
	write(t, file, "# nobody")
	if end := within(t, "an end", r.cleaned); end.Token.Name != "last" {
		t.Errorf("ended: %v", end.Token.Name)
	}
	if p := c.call("echo", `{}`); p.status != 401 {
		t.Errorf("%d %s", p.status, p.body)
	}
}

// A new token is accepted at once, however short ago the file was looked at.
func TestNewTokenAtOnce(t *testing.T) {
	file, tokens := tokensOf(t, "first")
	r := newRig(t, func(o *httpd.Options) { o.Tokens = tokens })
	for i, name := range []string{"second", "third", "fourth"} {
		r.holder("first").open() // looks at the file
		write(t, file, append(lines([]string{"first", name}), strings.Repeat("#", i))...)
		r.holder(name).open()
	}
}

// A new token is accepted of all who come with it at once: who finds another reading the file waits
// for what that reads.
func TestNewTokenOfMany(t *testing.T) {
	file, tokens := tokensOf(t, "n0")
	r := newRig(t, func(o *httpd.Options) { o.Tokens = tokens })
	names := []string{"n0"}
	var refused atomic.Int32
	for end := time.Now().Add(time.Second); refused.Load() == 0 && len(names) < 300 && time.Now().Before(end); {
		name := fmt.Sprint("n", len(names))
		names = append(names, name)
		write(t, file, lines(names)...)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if r.handle(r.holder(name).request(t.Context(), "GET", "")).Code == 401 {
					refused.Add(1)
				}
			})
		}
		all.Wait()
	}
	if n := refused.Load(); n > 0 {
		t.Errorf("the file's token %d was refused to %d of 8", len(names), n)
	}
}

// No call is carried out at a target that the token is not for any more, be it in a session
// or in a principal's lease.
func TestMovedToken(t *testing.T) {
	file, tokens := tokensOf(t, "one")
	r := newRig(t, func(o *httpd.Options) { o.Tokens, o.Idle = tokens, time.Hour }) // no sweep ends them
	session, m := r.holder("one").open(), r.modern()
	m.token = "token-one"
	if p := m.call("echo", `{}`); p.status != 200 {
		t.Fatalf("%d %s", p.status, p.body)
	}
	write(t, file, tokenLine("one", " targets=local"))
	eventually(t, "the session ends at a call", func() bool { return session.call("echo", `{}`).status == 404 })
	if p := m.call("echo", `{}`); p.status != 200 {
		t.Errorf("without a session: %d %s", p.status, p.body)
	}
	ended := map[string]bool{}
	for range 2 {
		ended[within(t, "an end", r.cleaned).Kind] = true
	}
	if !ended["http"] || !ended["stateless"] || r.count() != 3 || r.opened[2].Token.Targets == nil {
		t.Errorf("ended: %v; %d were opened", ended, r.count())
	}
}

// tokenLine is the line of the token token-NAME.
func tokenLine(name, limits string) string {
	return httpd.Token{Name: name, Hash: httpd.Hash("token-" + name)}.Line() + limits
}

// write replaces a file of tokens.
func write(t testing.TB, file string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}
