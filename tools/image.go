package tools

import "strings"

// isLocalImage reports whether an image is a file of this computer rather than
// a registry reference or a built-in one.
func isLocalImage(image string) bool {
	for _, start := range []string{"/", "./", "../", "oci-archive:", "docker-archive:"} {
		if strings.HasPrefix(image, start) {
			return true
		}
	}
	for _, end := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(image, end) {
			return true
		}
	}
	return false
}

// isRegistryImage reports whether somebody must pull the image from a registry.
func isRegistryImage(image string) bool {
	return !isLocalImage(image) && !strings.HasPrefix(image, "builtin:")
}
