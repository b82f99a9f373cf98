package cli

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet/fleettest"
)

// story is how long the command of TestCommandOutlivesAll takes, and when everything around
// it is killed. SMOL_TEST_STORY=180 makes it three minutes.
func story(t *testing.T) (length, kill time.Duration) {
	t.Helper()
	if secs, err := strconv.Atoi(os.Getenv("SMOL_TEST_STORY")); err == nil {
		return time.Duration(secs) * time.Second, 20 * time.Second
	}
	return 6 * time.Second, 2 * time.Second
}

// A command goes on when its client, its server and the engine are killed. Its handle gives
// another server the right exit code, and every byte once, whoever the machine belonged to.
func TestCommandOutlivesAll(t *testing.T) {
	length, kill := story(t)
	data := fleettest.SmolvmData(t)
	env := append(privatePlaces(t), "SMOLVM="+fleettest.BuildSmolvm(t), "SMOLVM_DATA_DIR="+data)
	t.Cleanup(func() { killEngines(data) })
	program := build(t, "../smol-mcp")
	first := startServer(t, program, env...)
	machine := first.call("create-machine", map[string]any{"image": "alpine:3.20", "network": "open"})["machine"].(map[string]any)
	name := machine["name"].(string)
	line := "i=0; while [ $i -lt " + strconv.Itoa(int(length/time.Second)*10) + " ]; do head -c 5000 /dev/urandom | tee -a /root/source; sleep 0.1; i=$((i+1)); done; exit 7"
	ran := first.call("run-command", map[string]any{"name": name, "command": line, "waitSecs": 1, "timeoutSecs": 600})
	if ran["running"] != true {
		t.Fatalf("ran: %v", ran)
	}
	time.Sleep(kill) // the story's own clock
	_ = first.cmd.Process.Kill()
	_ = first.cmd.Wait()
	killEngines(data)

	second := startServer(t, program, env...)
	defer second.end()
	handle := map[string]any{"name": name, "commandId": ran["commandId"]}
	read := second.call("read-command", handle)
	for end := time.Now().Add(length + 30*time.Second); read["running"] == true && time.Now().Before(end); {
		read = second.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 20})
	}
	if read["exitCode"] != 7.0 || read["running"] != false || read["stderrBytes"] != 0.0 {
		t.Fatalf("at its end: exit code %v, running %v, note %v", read["exitCode"], read["running"], read["note"])
	}
	sum := sha256.Sum256(second.everything(handle, "stdout"))
	if source := second.call("run-command", map[string]any{"name": name, "command": "sha256sum /root/source"})["stdout"].(string); !strings.HasPrefix(source, hex.EncodeToString(sum[:])) {
		t.Errorf("what was read is not what was printed: %x, %s", sum, source)
	}
	if now := second.call("get-machine", map[string]any{"name": name}); now["owner"] != "this-session" || now["createdAt"] != machine["createdAt"] {
		t.Errorf("the machine: %v", now)
	}
}

// everything pages through an output of a command.
func (s *server) everything(handle map[string]any, stream string) []byte {
	s.t.Helper()
	var all []byte
	for {
		read := s.call("read-command", map[string]any{"name": handle["name"], "commandId": handle["commandId"], "stream": stream, "offset": len(all)})
		page := []byte(read[stream].(string))
		if encoding, ok := read["encoding"].(map[string]any); ok && encoding[stream] == "base64" {
			var err error
			if page, err = base64.StdEncoding.DecodeString(string(page)); err != nil {
				s.t.Fatal(err)
			}
		}
		all = append(all, page...)
		if read["truncated"] != true {
			return all
		}
	}
}

// A command in the foreground that outlasts its open request takes its time over HTTP too, in
// both eras; the guests of the fake engine tell no clock.
func TestDurationOverHTTP(t *testing.T) {
	s := newHTTPPlace(t).start()
	first := s.connect(handshakeEra, theToken)
	name := newMachine(t, first)
	for era, cs := range map[string]*mcp.ClientSession{handshakeEra: first, modernEra: s.connect(modernEra, theToken)} {
		ran := must(t, cs, "run-command", map[string]any{"name": name, "command": "echo out; sleep 3; exit 6"})
		if took := ran["durationMs"].(float64); took < 3000 || took > 40_000 || ran["exitCode"] != 6.0 || ran["stdout"] != "out\n" {
			t.Errorf("%s: %v", era, ran)
		}
	}
}
