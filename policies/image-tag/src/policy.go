package main

import (
	"strconv"
	"strings"
)

// validate returns why a request is denied, or nothing.
func validate(document value) string {
	settings, message := readSettings(document.get("settings"))
	if message != "" {
		return "settings: " + message
	}
	request := document.get("request")
	// An object that is being deleted must be able to lose its finalizers. Only the stored object can tell: a
	// user may write a deletionTimestamp into a new one.
	if request.get("oldObject").get("metadata").get("deletionTimestamp").kind != null {
		return ""
	}
	path, spec := podSpec(request.get("kind"), request.get("object"))
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for i, container := range spec.get(list).list {
			if problem := settings.check(container.get("image").text); problem != "" {
				where := path + "." + list + "[" + strconv.Itoa(i) + "]"
				return "container " + quote(container.get("name").text) + " (" + where + "): " + problem
			}
		}
	}
	return ""
}

// podSpec finds the pod spec of an object and says where it is; what has none gives an empty value.
func podSpec(kind, object value) (string, value) {
	var path string
	switch kind.get("group").text + "/" + kind.get("kind").text {
	case "/Pod":
		path = "spec"
	case "apps/DaemonSet", "apps/Deployment", "apps/ReplicaSet", "apps/StatefulSet", "batch/Job":
		path = "spec.template.spec"
	case "batch/CronJob":
		path = "spec.jobTemplate.spec.template.spec"
	default:
		return "", value{}
	}
	for _, key := range strings.Split(path, ".") {
		object = object.get(key)
	}
	return path, object
}

type settings struct {
	deniedTags    []string
	requireDigest bool
}

// readSettings returns the settings, or what is wrong with them.
func readSettings(document value) (settings, string) {
	read := settings{deniedTags: []string{"latest"}}
	if document.kind != object && document.kind != null {
		return read, "settings must be an object"
	}
	for _, field := range document.fields {
		switch field.key {
		case "deniedTags":
			read.deniedTags = nil
			if field.value.kind != list {
				return read, "deniedTags must be a list of tags"
			}
			for i, tag := range field.value.list {
				if tag.kind != str || tag.text == "" {
					return read, "deniedTags[" + strconv.Itoa(i) + "] must be a tag"
				}
				read.deniedTags = append(read.deniedTags, tag.text)
			}
		case "requireDigest":
			if field.value.kind != boolean {
				return read, "requireDigest must be true or false"
			}
			read.requireDigest = field.value.truth
		default:
			return read, "there is no setting " + quote(field.key) + ": there are deniedTags and requireDigest"
		}
	}
	return read, ""
}

// check returns what is wrong with an image reference, or nothing.
func (s settings) check(image string) string {
	if strings.Contains(image, "@") {
		return ""
	}
	if s.requireDigest {
		return "image " + quote(image) + " has no digest: write name@sha256:…"
	}
	// A colon before the last slash belongs to the registry's port.
	name := image[strings.LastIndexByte(image, '/')+1:]
	colon := strings.IndexByte(name, ':')
	if colon < 0 {
		return "image " + quote(image) + " has no tag, which means latest: name a version"
	}
	tag := name[colon+1:]
	for _, denied := range s.deniedTags {
		if tag == denied {
			return "image " + quote(image) + " has the tag " + quote(tag) + ", which moves: name a version"
		}
	}
	return ""
}
