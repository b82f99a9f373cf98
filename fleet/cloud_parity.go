package fleet

// The published document of the cloud's API is behind its service: it names routes
// that do not work, and leaves out some that shipped clients call. A row is
// optional where the document of August 2026 does not have it.

// cloudRoutes is every route of the cloud below machines, and what else we call.
var cloudRoutes = []knownRoute{
	{"GET", "/health", "Info", "", false},
	{"GET", "/v1/me", "Identity", "", false},
	{"GET", "/v1/account", "Identity", "", false}, // where there is no /v1/me
	{"GET", cloudMachines, "List", "", false},
	{"POST", cloudMachines, "Create", "", false},
	{"GET", cloudMachines + "/{}", "Get", "", false},
	{"DELETE", cloudMachines + "/{}", "Delete", "", false},
	{"POST", cloudMachines + "/{}/start", "Start", "", false},
	{"POST", cloudMachines + "/{}/stop", "Stop", "", false},
	{"POST", cloudMachines + "/{}/exec", "Exec", "", false},
	{"GET", cloudMachines + "/{}/events", "Logs", "", false},
	{"POST", cloudMachines + "/{}/pause", "Stop", "", true},
	{"POST", cloudMachines + "/{}/resume", "Start", "", true},
	{"POST", cloudMachines + "/{}/branches", "Branch", "", true},
	{"POST", cloudMachines + "/{}/fork", "Branch", "", true},
	{"GET", cloudMachines + "/{}/files/{}", "Download", "", true},
	{"PUT", cloudMachines + "/{}/files/{}", "Upload", "", true},
	{"GET", cloudMachines + "/{}/usage", "Delete", "", true},

	{"GET", cloudMachines + "/{}/files", "", "answers 404 with an empty body; the path follows files/ instead", false},
	{"POST", cloudMachines + "/{}/files", "", "as documented, with a list of numbers, it does not work", false},
	{"POST", cloudMachines + "/{}/code", "", "run-command runs any language", false},
	{"GET", cloudMachines + "/{}/sessions", "", "jobs in the guest keep what a session would", false},
	{"POST", cloudMachines + "/{}/sessions", "", "jobs in the guest keep what a session would", false},
	{"DELETE", cloudMachines + "/{}/sessions/{}", "", "jobs in the guest keep what a session would", false},
	{"POST", cloudMachines + "/{}/sessions/{}/exec", "", "jobs in the guest keep what a session would", false},
	{"POST", cloudMachines + "/{}/exec/stream", "", "loses bytes that are not UTF-8 and cannot be taken up again; jobs write files in the guest instead", true},
	{"GET", cloudMachines + "/{}/exec/interactive", "", "a terminal for people", true},
	{"GET", cloudMachines + "/{}/logs", "", "clients differ on whether it is there; the events are", true},
	{"GET", cloudMachines + "/{}/lineage", "", "its answer is described nowhere", true},
	{"POST", cloudMachines + "/{}/fork-batch", "", "branches are recorded and made one by one", true},
	{"POST", cloudMachines + "/{}/branches/batch", "", "branches are recorded and made one by one", true},
	{"GET", cloudMachines + "/{}/checkpoints", "", "a suspended machine or a branch serves instead", true},
	{"POST", cloudMachines + "/{}/checkpoints", "", "a suspended machine or a branch serves instead", true},
	{"POST", cloudMachines + "/{}/snapshot", "", "answers 501", true},
	{"POST", cloudMachines + "/{}/export", "", "pushes to a registry; not for agents", true},
	{"POST", cloudMachines + "/{}/assign", "", "leases are for branches only and were not seen at work", true},
	{"GET", cloudMachines + "/{}/connect/{}", "", "hands the account's key to the guest", true},
	{"POST", cloudMachines + "/{}/share", "", "publishes a machine to anybody with the link", true},
	{"DELETE", cloudMachines + "/{}/share", "", "publishes a machine to anybody with the link", true},
	{"GET", "/livez", "", "health says enough", false},
	{"GET", "/readyz", "", "health says enough", false},
	{"GET", "/metrics", "", "for operators", false},
	{"GET", "/v1/usage", "", "wants the scope admin; each machine's bill comes with its deletion", false},
}

// cloudPrefixes are parts of the cloud's API that are left alone.
var cloudPrefixes = []skippedPart{
	{"/v1/volumes", "a machine comes up without its volumes, silently"},
	{"/v1/groups", "services and not machines"},
	{"/v1/apps", "services and not machines"},
	{"/v1/pools", "warm pools, for operators"},
	{"/v1/checkpoints", "a suspended machine or a branch serves instead"},
	{"/v1/leases", "leases are for branches only and were not seen at work"},
	{"/v1/agents", "the service's own agents"},
	{"/v1/apikeys", "keys are the account's owner's business"},
	{"/v1/tokens", "keys are the account's owner's business"},
	{"/v1/billing", "the account's owner's business"},
	{"/v1/plans", "for operators"},
	{"/v1/tenants", "for operators"},
	{"/v1/nodes", "for operators"},
	{"/v1/operations", "for operators"},
	{"/v1/registry", "for pushing images"},
}

// CheckCloudParity compares an OpenAPI document of smol cloud with our table of it.
func CheckCloudParity(doc []byte) (Parity, error) {
	return knownAPI{routes: cloudRoutes, prefixes: cloudPrefixes, silent: true}.check(doc)
}
