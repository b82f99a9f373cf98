package cli

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// identityTime bounds the question whose key it is.
const identityTime = 20 * time.Second

// neededScopes are what a key has to permit for all tools to work.
var neededScopes = []string{"machine:create", "machine:read", "machine:exec", "machine:files", "machine:delete"}

// examineCloud looks at the key, and asks the service whose it is.
func examineCloud(ctx context.Context, r *resolved, st *store.Store, served bool) []finding {
	login := r.cloudLogin(os.LookupEnv)
	if !served {
		return []finding{fine("cloud_off", "the cloud is not served (targets %s, and no key in the settings)", r.Targets)}
	}
	key, err := login.key(ctx)
	switch {
	case err != nil:
		return []finding{{"cloud_key_unreadable", "error", "the cloud's key cannot be read", err.Error(), "correct the file, or set SMOL_CLOUD_TOKEN"}}
	case key == "":
		return []finding{{"cloud_key_missing", "error", "the cloud is served and has no key", "none in " + login.name, "set one, or SMOL_MCP_TARGETS=local"}}
	}
	cloud := cloudFleet(login, "", st, slog.New(slog.DiscardHandler))
	defer cloud.Close()
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	id, err := cloud.Identity(ctx)
	switch code := fleet.CodeOf(err); {
	case code == fleet.CodeCloudUnauthorized:
		return []finding{{"cloud_key_refused", "error", "the cloud at " + login.url + " refuses the key from " + login.name, err.Error(), "put a valid key there; until then no cloud machine of ours can be deleted, and only its time to live ends it"}}
	case err != nil:
		return []finding{{"cloud_unreachable", "error", "the cloud at " + login.url + " does not answer", err.Error(), "see to the network and SMOL_CLOUD_URL, and try again"}}
	}
	return examineIdentity(id, login)
}

// examineIdentity judges what the service says of a key.
func examineIdentity(id fleet.CloudIdentity, login cloudLogin) []finding {
	tenant := strings.TrimSpace(id.Name + " " + id.Tenant)
	all := []finding{fine("cloud_ok", "key from %s works at %s: tenant %s, account %s", login.name, login.url, tenant, id.Account)}
	if id.Status != "" && id.Status != "active" {
		all = append(all, finding{"cloud_account", "warning", "the account is " + id.Status, "the service makes no machines for it", "machines that exist can still be deleted; see to the account"})
	}
	if missing := missingScopes(id.Scopes); len(missing) > 0 {
		all = append(all, finding{"cloud_scopes", "error", "the key lacks " + strings.Join(missing, ", "), "it has " + strings.Join(id.Scopes, ", "), "make a key with these scopes; without machine:delete nothing is created, since it could not be deleted"})
	}
	return all
}

// missingScopes are the needed scopes that a key lacks; none where the service does not
// say what it has.
func missingScopes(has []string) []string {
	if len(has) == 0 || slices.ContainsFunc(has, func(s string) bool { return s == "admin" || s == "*" || s == "machine" || s == "machine:*" }) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(neededScopes), func(need string) bool { return slices.Contains(has, need) })
}
