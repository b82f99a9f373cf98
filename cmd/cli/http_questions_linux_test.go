package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newQuestionsPlace is where two fleets are served, so that the user is asked which one is meant.
func newQuestionsPlace(t *testing.T) *httpPlace {
	return newHTTPPlace(t, "SMOL_MCP_TARGETS=both", "SMOL_CLOUD_TOKEN=smk_none", "SMOL_CLOUD_URL=http://127.0.0.1:1")
}

// A user is somebody whose client shows forms.
type user struct {
	answer      mcp.ElicitResult
	asked, told atomic.Int32
}

func (u *user) client(o *mcp.ClientOptions) {
	o.Capabilities = &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}}
	o.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		u.asked.Add(1)
		return &u.answer, nil
	}
	o.ProgressNotificationHandler = func(context.Context, *mcp.ProgressNotificationClientRequest) { u.told.Add(1) }
}

// The user is asked, and told how far a call is, over HTTP as over standard input, in both eras:
// once for a session, and for each call where there are none.
func TestHTTPQuestions(t *testing.T) {
	s := newQuestionsPlace(t).start()
	for era, perCall := range map[string]bool{handshakeEra: false, modernEra: true} {
		t.Run(era, func(t *testing.T) {
			u := &user{answer: mcp.ElicitResult{Action: "accept", Content: map[string]any{"target": "local"}}}
			cs := s.connect(era, theToken, u.client)
			for i := range int32(3) {
				params := &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20", "network": "open"}}
				params.SetProgressToken("p")
				res, err := cs.CallTool(t.Context(), params)
				if err != nil || res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, `"target":"local"`) {
					t.Fatalf("%v %+v", err, res)
				}
				want := int32(1)
				if perCall {
					want = i + 1
				}
				if got := u.asked.Load(); got != want {
					t.Errorf("after call %d: asked %d times, want %d", i+1, got, want)
				}
			}
			if u.told.Load() == 0 {
				t.Error("not told of progress")
			}
			// Another session of the same principal is asked anew, and no means no.
			no := &user{answer: mcp.ElicitResult{Action: "decline"}}
			other := s.connect(era, theToken, no.client)
			for range 2 {
				res, err := other.CallTool(t.Context(), &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20"}})
				if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "the user did not choose one") {
					t.Errorf("declined: %v %+v", err, res)
				}
			}
			if n := no.asked.Load(); n < 1 || n > 1 && !perCall {
				t.Errorf("asked %d times", n)
			}
			if out := must(t, other, "create-machine", map[string]any{"target": "local", "image": "alpine:3.20", "network": "open"}); out["machine"] == nil {
				t.Errorf("with a target: %v", out)
			}
		})
	}
}

// A client without a stream of news is asked on the stream of its call (W28).
func TestHTTPQuestionOfACall(t *testing.T) {
	s := newQuestionsPlace(t).start()
	r := s.raw(theToken)
	_, header, err := r.post(t.Context(), strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1))
	if err != nil {
		t.Fatal(err)
	}
	r.id = header.Get("Mcp-Session-Id")
	req, err := r.request(t.Context(), http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"create-machine","arguments":{"image":"alpine:3.20","network":"open"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	res, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	asked, result := false, ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var m struct {
			ID     json.RawMessage
			Method string
			Result json.RawMessage
		}
		if !ok || json.Unmarshal([]byte(data), &m) != nil {
			continue
		}
		switch {
		case m.Method == "elicitation/create":
			asked = true
			answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"target":"local"}}}`, m.ID)
			if _, _, err := r.post(t.Context(), answer); err != nil {
				t.Fatal(err)
			}
		case m.Result != nil:
			result = string(m.Result)
		}
	}
	if !asked || !strings.Contains(result, `\"target\":\"local\"`) {
		t.Errorf("asked: %v; result: %s", asked, result)
	}
	if took := time.Since(begin); took > 25*time.Second { // the question waits for 30
		t.Errorf("it took %v", took)
	}
}
