package registry

import (
	"net/http"
	"slices"
	"strings"
)

// route is one endpoint of the API. HEAD goes where GET goes.
type route struct {
	public  bool // may be read with AnonymousPull
	methods methods
}

type methods map[string]func(*exchange) error

func (rt *route) serve(method string) func(*exchange) error {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	return rt.methods[method]
}

func (rt *route) allow() string {
	var names []string
	for m := range rt.methods {
		if names = append(names, m); m == http.MethodGet {
			names = append(names, http.MethodHead)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

var (
	routePing      = &route{true, methods{"GET": (*exchange).ping}}
	routeToken     = &route{true, methods{"GET": (*exchange).giveToken, "POST": (*exchange).giveToken}}
	routeCatalog   = &route{false, methods{"GET": (*exchange).listRepositories}}
	routeTags      = &route{true, methods{"GET": (*exchange).listTags}}
	routeReferrers = &route{true, methods{"GET": (*exchange).listReferrers}}
	routeManifest  = &route{true, methods{
		"GET": (*exchange).getManifest, "PUT": (*exchange).putManifest, "DELETE": (*exchange).deleteManifest,
	}}
	routeBlob    = &route{true, methods{"GET": (*exchange).getBlob, "DELETE": (*exchange).deleteBlob}}
	routeUploads = &route{false, methods{"POST": (*exchange).startUpload}}
	routeUpload  = &route{false, methods{
		"GET": (*exchange).uploadStatus, "PATCH": (*exchange).patchUpload,
		"PUT": (*exchange).putUpload, "DELETE": (*exchange).cancelUpload,
	}}
)

// route finds the endpoint from the end of the path, since a repository's name may have any of
// the words, and checks the name. With an error the route, where there is one, is still right.
func (x *exchange) route() (*route, error) {
	path, ok := strings.CutPrefix(x.r.URL.Path, "/v2")
	if ok && (path == "" || path == "/") {
		return routePing, nil
	}
	if !ok || path[0] != '/' {
		return nil, errNoRoute
	}
	switch path {
	case "/_catalog":
		return routeCatalog, nil
	case "/token":
		return routeToken, nil
	}
	if strings.Contains(strings.ToLower(x.r.URL.EscapedPath()), "%2f") {
		return nil, &apiError{http.StatusBadRequest, codeNameInvalid, "the path has an encoded slash"}
	}
	rt, name, reference := splitPath(path[1:])
	if rt == nil {
		return nil, errNoRoute
	}
	x.repository, x.reference = name, reference
	return rt, checkName(name)
}

func splitPath(path string) (rt *route, name, reference string) {
	parts := strings.Split(path, "/")
	n := len(parts)
	join := func(k int) string { return strings.Join(parts[:k], "/") }
	switch {
	case n >= 3 && parts[n-2] == "manifests":
		return routeManifest, join(n - 2), parts[n-1]
	case n >= 4 && parts[n-3] == "blobs" && parts[n-2] == "uploads" && parts[n-1] == "":
		return routeUploads, join(n - 3), ""
	case n >= 4 && parts[n-3] == "blobs" && parts[n-2] == "uploads":
		return routeUpload, join(n - 3), parts[n-1]
	case n >= 3 && parts[n-2] == "blobs" && parts[n-1] == "uploads":
		return routeUploads, join(n - 2), ""
	case n >= 3 && parts[n-2] == "blobs":
		return routeBlob, join(n - 2), parts[n-1]
	case n >= 3 && parts[n-2] == "tags" && parts[n-1] == "list":
		return routeTags, join(n - 2), ""
	case n >= 3 && parts[n-2] == "referrers":
		return routeReferrers, join(n - 2), parts[n-1]
	}
	return nil, "", ""
}
