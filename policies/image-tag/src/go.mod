module assent.dev/policies/image-tag

go 1.26
