//! JSON Schema and templates.

use super::*;

#[test]
fn schemas_match_opa() {
    let cases: &[(&str, &[&str])] = &[
        (
            r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 1}}}"#,
            &[
                r#"{"a": 1}"#,
                r#"{"a": 0}"#,
                r#"{}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1.0}"#,
                r#"{"a": 1.5}"#,
                "[]",
            ],
        ),
        (
            r#"{"additionalProperties": false, "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "string"}}}"#,
            &[
                r#"{"a": 1}"#,
                r#"{"x-b": "s"}"#,
                r#"{"x-b": 1}"#,
                r#"{"b": 1}"#,
            ],
        ),
        (
            r#"{"additionalProperties": {"type": "number"}, "minProperties": 1, "maxProperties": 2}"#,
            &[
                "{}",
                r#"{"a": 1}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1, "b": 2, "c": 3}"#,
            ],
        ),
        (
            r#"{"items": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"}, "uniqueItems": true, "minItems": 1, "maxItems": 2}"#,
            &[
                "[]",
                r#"["ab"]"#,
                r#"["a"]"#,
                r#"["abcd"]"#,
                r#"["bcd"]"#,
                r#"["ab", "ab"]"#,
                r#"["ab", "ac", "ad"]"#,
                r#"["äöü"]"#,
                "[1, 1.0]",
            ],
        ),
        (
            r#"{"items": [{"type": "string"}, {"type": "number"}], "additionalItems": false}"#,
            &[r#"["a", 1]"#, r#"["a"]"#, r#"[1, "a"]"#, r#"["a", 1, 2]"#],
        ),
        (
            r#"{"items": [{"type": "string"}], "additionalItems": {"type": "number"}}"#,
            &[r#"["a", 1, "x"]"#, r#"["a", 1]"#],
        ),
        (r#"{"contains": {"const": 3}}"#, &["[1, 2, 3]", "[1]", "[]"]),
        (
            r#"{"properties": {"n": {"multipleOf": 0.1, "maximum": 10, "exclusiveMinimum": 0}}}"#,
            &[
                r#"{"n": 0.3}"#,
                r#"{"n": 0.35}"#,
                r#"{"n": 0}"#,
                r#"{"n": 10}"#,
                r#"{"n": 10.1}"#,
                r#"{"n": "x"}"#,
            ],
        ),
        (
            r#"{"properties": {"n": {"minimum": 5, "exclusiveMinimum": true, "maximum": 7, "exclusiveMaximum": true}}}"#,
            &[r#"{"n": 5}"#, r#"{"n": 6}"#, r#"{"n": 7}"#],
        ),
        (
            r#"{"enum": [{"a": 1}, [1]]}"#,
            &[r#"{"a": 1}"#, r#"{"a": 1.0}"#, "[1]", "[2]"],
        ),
        (
            r#"{"properties": {"a": {"type": ["string", "null"]}}}"#,
            &[
                r#"{"a": null}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1}"#,
                r#"{"a": true}"#,
            ],
        ),
        (
            r##"{"definitions": {"p": {"type": "string"}}, "properties": {"a": {"$ref": "#/definitions/p"}}}"##,
            &[r#"{"a": "x"}"#, r#"{"a": 1}"#],
        ),
        (
            r##"{"properties": {"next": {"$ref": "#"}}, "required": ["v"]}"##,
            &[r#"{"v": 1, "next": {"v": 2}}"#, r#"{"v": 1, "next": {}}"#],
        ),
        (
            r##"{"definitions": {"a~b/c": {"type": "number"}}, "items": {"$ref": "#/definitions/a~0b~1c"}}"##,
            &["[1]", r#"["x"]"#],
        ),
        (
            r#"{"not": {"required": ["bad"]}}"#,
            &["{}", r#"{"bad": 1}"#],
        ),
        (
            r#"{"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}"#,
            &[r#"{"a": 1, "b": 1}"#, r#"{"a": 1}"#, r#"{"c": 1}"#, "{}"],
        ),
        (
            r#"{"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}"#,
            &["{}", r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#, r#"{"c": 1}"#],
        ),
        (
            r#"{"propertyNames": {"pattern": "^[a-z]+$"}}"#,
            &[r#"{"abc": 1}"#, r#"{"A": 1}"#],
        ),
        (
            r#"{"$schema": "http://json-schema.org/draft-04/schema#", "const": 1, "properties": {"a": {"type": "string"}}}"#,
            &[r#"{"a": "x"}"#, r#"{"a": 1}"#],
        ),
        (
            r#"{"properties": {"t": {"format": "date-time"}, "d": {"format": "date"}, "i": {"format": "ipv4"}, "j": {"format": "ipv6"}, "h": {"format": "hostname"}, "u": {"format": "uuid"}, "l": {"format": "uri"}, "e": {"format": "email"}, "r": {"format": "regex"}, "p": {"format": "json-pointer"}, "x": {"format": "strange"}}}"#,
            &[
                r#"{"t": "2024-01-02T03:04:05Z", "d": "2024-02-29", "i": "1.2.3.4", "j": "::1", "h": "a-b.c", "u": "123e4567-e89b-12d3-a456-426614174000", "l": "https://a/b", "e": "a@b.c", "r": "^a$", "p": "/a/0", "x": "?"}"#,
                r#"{"t": "yesterday", "d": "2023-02-29", "i": "1.2.3", "j": "1.2.3.4", "h": "-a", "u": "1", "l": "a/b", "e": "a", "r": "(", "p": "a", "x": "?"}"#,
                r#"{"t": "03:04:05", "d": "2024-1-2", "i": "256.1.1.1", "j": ":::1", "h": "a..b", "l": "\\", "e": "A <a@b.c>", "p": "/~2"}"#,
            ],
        ),
    ];
    let mut expressions = Vec::new();
    for (schema, documents) in cases {
        for document in *documents {
            // OPA's type checker wants lists as text.
            let text = json!(document);
            let call = match document.starts_with('[') {
                true => format!("json.match_schema({text}, {schema})"),
                false => format!("json.match_schema({document}, {schema})"),
            };
            expressions.push(format!(
                "[m[0], sort({{[e.type, e.field] | some e in m[1]}})] if m := {call}"
            ));
        }
        let text = json!(schema);
        expressions.push(format!(
            "json.match_schema({}, {text})[0]",
            json!(documents[0])
        ));
        expressions.push(format!("json.verify_schema({schema})"));
    }
    // Which of the alternatives came closest is a matter of taste.
    for (schema, documents) in [
        (
            r#"{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"b": 1}"#, "{}"],
        ),
        (
            r#"{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"a": 1, "b": 1}"#, "{}"],
        ),
        (
            r#"{"allOf": [{"required": ["a"]}, {"required": ["b"]}]}"#,
            [r#"{"a": 1}"#, r#"{"a": 1, "b": 1}"#, "{}"],
        ),
    ] {
        for document in documents {
            expressions.push(format!("json.match_schema({document}, {schema})[0]"));
        }
    }
    for bad in [
        r#"{"type": "strange"}"#,
        r#"{"type": 1}"#,
        r#"{"type": ["string", "string"]}"#,
        r#"{"properties": []}"#,
        r#"{"required": "a"}"#,
        r#"{"required": ["a", "a"]}"#,
        r#"{"minLength": -1}"#,
        r#"{"minLength": 1.5}"#,
        r#"{"minLength": 3, "maxLength": 2}"#,
        r#"{"minItems": 3, "maxItems": 2}"#,
        r#"{"multipleOf": 0}"#,
        r#"{"pattern": "("}"#,
        r#"{"patternProperties": {"(": {}}}"#,
        r#"{"enum": [1, 1]}"#,
        r#"{"enum": 1}"#,
        r#"{"exclusiveMinimum": true}"#,
        r##"{"$ref": "#/nowhere"}"##,
        r#"{"items": 1}"#,
        r#"{"additionalProperties": 1}"#,
        r#"{"dependencies": {"a": 1}}"#,
        r#"{"not": 1}"#,
        r#"{"oneOf": {}}"#,
        r#"{"definitions": {"a": 1}}"#,
        r#"{"$schema": 1}"#,
        r#""{""#,
        r#""[]""#,
        r#"{"unknown": {"type": "strange"}}"#,
    ] {
        expressions.push(format!("json.verify_schema({bad})[0]"));
        expressions.push(format!("json.match_schema({{}}, {bad})"));
    }
    compare(
        &json!({}),
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

#[test]
fn templates_match_opa() {
    let texts = [
        "plain",
        "{{.name}} and {{ .name }}",
        "{{.missing}} {{.object.missing}}",
        "{{.object.a.b}} {{.object}} {{.list}} {{.number}} {{.float}} {{.yes}} {{.null}}",
        "{{range $i, $name := .list}}{{if $i}},{{end}}hello {{$name}}{{end}}",
        "{{range .list}}<{{.}}>{{else}}none{{end}}{{range .empty}}x{{else}}none{{end}}",
        "{{range $k, $v := .object}}{{$k}}={{$v}};{{end}}",
        "{{range .missing}}x{{else}}none{{end}}",
        "{{if .yes}}yes{{else}}no{{end}}{{if .no}}yes{{else if .yes}}second{{else}}no{{end}}",
        "{{if .empty}}a{{end}}{{if .zero}}b{{end}}{{if .null}}c{{end}}{{if not .no}}d{{end}}",
        "{{with .object}}{{.a.b}} {{$.name}}{{else}}x{{end}}{{with .missing}}x{{else}}{{.name}}{{end}}",
        "{{$x := .name}}{{$x}}{{$x = .number}}{{$x}}",
        "a {{- .name -}} b {{ .name -}}  c",
        "x {{- /* a comment */ -}} y{{/* another */}}z",
        "{{len .list}} {{len .name}} {{.list | len}} {{len .object}}",
        "{{index .list 0}} {{index .object \"a\" \"b\"}}",
        "{{index .list 9}}",
        "{{eq .name \"x\"}} {{eq .name \"bob\"}} {{ne .name `bob`}} {{eq 1 1}} {{lt 1 2}} {{ge 1 2}} {{eq .name \"a\" \"bob\"}}",
        "{{eq .number 5}}",
        "{{and .yes .name}} {{or .no .name}} {{and .no .nothing.at.all}}",
        "{{print 1 2 \"a\" \"b\" 3}} {{println .name 1}}",
        "{{(index .list 0)}} {{.object.a | print}}",
        "{{range .list}}{{$.name}}{{end}}",
        "{{.name.x}}",
        "{{.name",
        "{{end}}",
        "{{if .x}}",
        "{{nofunction .x}}",
        "{{$undeclared}}",
        "{{nil}}",
        "{{range .number}}x{{end}}",
        "}} {{`{{`}}",
    ];
    let expressions: Vec<String> = texts
        .iter()
        .map(|text| format!("strings.render_template({}, r)", json!(text)))
        .collect();
    compare(
        &json!({
            "name": "bob", "number": 5, "float": 1.5, "zero": 0, "yes": true, "no": false, "null": null,
            "list": ["a", "b"], "empty": [], "object": {"a": {"b": "deep"}, "z": [1, null]},
        }),
        &expressions.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}
