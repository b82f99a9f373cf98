package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// partly serves an engine that describes files with the parameters, and answers
// for a file as file does.
func partly(t *testing.T, parameters string, file http.HandlerFunc) *script {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			says(200, "application/json", `{"status":"ok","version":"1.0.0","engine":"qemu","uptime_seconds":5}`)(w, r)
		case openapiPath:
			says(200, "application/json", `{"paths":{"/api/v1/machines/{name}/files/{path}":{"get":{"parameters":[`+parameters+`]}}}}`)(w, r)
		default:
			file(w, r)
		}
	})
}

const takesRange = `{"name":"path","in":"path"},{"name":"Range","in":"header"}`

// says206 answers a part of ten bytes, with a Content-Range.
func says206(content, text string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Range", content)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, text)
	}
}

func TestDownloadPart(t *testing.T) {
	whole := says(200, "application/octet-stream", "0123456789")
	for _, c := range []struct {
		what           string
		handler        http.HandlerFunc
		offset, length int64
		got            string
		part           Part
		code           Code
	}{
		{"a part", says206("bytes 2-4/10", "234"), 2, 3, "234", Part{Bytes: 3, Size: 10}, ""},
		{"less than asked for", says206("bytes 8-9/10", "89"), 8, 5, "89", Part{Bytes: 2, Size: 10}, ""},
		{"of a file of unknown size", says206("bytes 2-4/*", "234"), 2, 3, "234", Part{Bytes: 3, Size: 5}, ""},
		{"for which the machine was started", says206("bytes 0-0/1", "x", "X-Machine-Started", "true"), 0, 1, "x", Part{Bytes: 1, Size: 1, Started: true}, ""},
		{"from another place", says206("bytes 3-5/10", "345"), 2, 3, "", Part{}, CodeInternal},
		{"without a place", says206("", "234"), 2, 3, "", Part{}, CodeInternal},
		{"too long", says206("bytes 2-9/10", "23456789"), 2, 3, "", Part{}, CodeInternal},
		{"the whole, from the start", whole, 0, 3, "012", Part{Bytes: 3, Size: 10}, ""},
		{"the whole, from elsewhere", whole, 2, 3, "", Part{}, CodeUnsupported},
		{"an empty file", says(200, "application/octet-stream", ""), 0, 3, "", Part{}, ""},
		{"a directory", says(200, "application/json", `{"entries":[]}`), 0, 3, "", Part{}, CodeInvalid},
		{"behind the end", says(416, "text/plain", "the file has 10 bytes"), 10, 3, "", Part{}, CodeInternal},
		{"no length", whole, 0, 0, "", Part{}, CodeInvalid},
		{"before the start", whole, -1, 3, "", Part{}, CodeInvalid},
	} {
		t.Run(c.what, func(t *testing.T) {
			var got bytes.Buffer
			p, err := partly(t, takesRange, c.handler).DownloadPart(t.Context(), "vm", "/x", &got, c.offset, c.length)
			if p != c.part || got.String() != c.got || CodeOf(err) != c.code {
				t.Errorf("%+v, wrote %q, %v", p, got.String(), err)
			}
		})
	}
	_, err := partly(t, takesRange, whole).DownloadPart(t.Context(), "vm", "/x", failing{}, 0, 5)
	wantErr(t, err, CodeInternal, false, "disk full")
}

// A part is one request once the engine is known; without the offer it is none.
func TestDownloadPartRequests(t *testing.T) {
	var ranges []string
	s := partly(t, takesRange, func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		says206("bytes 7-9/10", "789")(w, r)
	})
	for range 3 {
		if _, err := s.DownloadPart(t.Context(), "vm", "/x", io.Discard, 7, 3); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.requests(); len(got) != 5 || fmt.Sprint(ranges) != "[bytes=7-9 bytes=7-9 bytes=7-9]" {
		t.Errorf("%q with %q", got, ranges)
	}
	none := partly(t, `{"name":"Range","in":"query"}`, says(500, "", ""))
	for range 3 {
		_, err := none.DownloadPart(t.Context(), "vm", "/x", io.Discard, 7, 3)
		wantErr(t, err, CodeUnsupported, false, "reads no parts")
	}
	if got := none.requests(); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// partFleet fails as often as told before it gives a part.
type partFleet struct {
	Fleet
	bad, calls int
}

func (f *partFleet) DownloadPart(_ context.Context, _, _ string, w io.Writer, _, _ int64) (Part, error) {
	if f.calls++; f.calls <= f.bad {
		return Part{}, Errorf(CodeUnreachable, "read", "broken")
	}
	n, err := io.WriteString(w, "x")
	return Part{Bytes: int64(n), Size: 1}, err
}

func TestRetryDownloadPart(t *testing.T) {
	f := &partFleet{bad: 1}
	var got strings.Builder
	p, err := Retry(f).(PartReader).DownloadPart(t.Context(), "vm", "/x", &got, 0, 1)
	if err != nil || p.Bytes != 1 || got.String() != "x" || f.calls != 2 {
		t.Errorf("%+v, %q after %d calls, %v", p, got.String(), f.calls, err)
	}
	_, err = Retry(struct{ Fleet }{}).(PartReader).DownloadPart(t.Context(), "vm", "/x", &got, 0, 1)
	wantErr(t, err, CodeUnsupported, false, "reads no parts")
}
