#![allow(clippy::unwrap_used)]

use super::*;

fn source(path: Option<&str>) -> SettingsSource {
    SettingsSource {
        secret_key_ref: SecretKeyRef {
            name: "db".into(),
            key: "token".into(),
        },
        path: path.map(str::to_owned),
    }
}

#[track_caller]
fn check(settings: &str, sources: &[(Option<&str>, &str)], expected: Result<&str, &str>) {
    let (paths, values): (Vec<_>, Vec<_>) = sources.iter().copied().unzip();
    let sources: Vec<_> = paths.into_iter().map(source).collect();
    let values: Vec<_> = values.iter().map(|v| v.as_bytes().to_vec()).collect();
    let merged = merge(settings.as_bytes(), &sources, &values);
    match (merged, expected) {
        (Ok(merged), Ok(expected)) => assert_eq!(String::from_utf8(merged).unwrap(), expected),
        (Err(error), Err(expected)) => {
            let error = error.to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        (merged, _) => panic!("{merged:?}"),
    }
}

#[test]
fn values_are_put_at_their_paths() {
    check(
        r#"{"auth":{"user":"a"},"z":1}"#,
        &[(Some("auth.token"), "hunter2\n"), (Some("b.c.d"), "017")],
        Ok(r#"{"auth":{"token":"hunter2\n","user":"a"},"b":{"c":{"d":"017"}},"z":1}"#),
    );
}

#[test]
fn objects_become_settings() {
    check(
        "{}",
        &[(None, "a: [1, yes]\nb: {c: x}")],
        Ok(r#"{"a":[1,true],"b":{"c":"x"}}"#),
    );
    check(
        r#"{"z":0}"#,
        &[(None, r#"{"a":1}"#)],
        Ok(r#"{"a":1,"z":0}"#),
    );
}

#[test]
fn bad_values_are_named_and_not_quoted() {
    check(
        r#"{"a":1}"#,
        &[(Some("a"), "hunter2")],
        Err("[0]: a setting is given twice"),
    );
    check(
        r#"{"a":1}"#,
        &[(None, "a: hunter2")],
        Err("[0]: a setting is given twice"),
    );
    check(
        r#"{"a":1}"#,
        &[(Some("a.b"), "hunter2")],
        Err("[0]: the path leads through"),
    );
    check(
        "{}",
        &[(Some("a"), "x"), (None, "hunter2")],
        Err("[1]: the value is not one YAML"),
    );
    check("{}", &[(None, "a: hunter2\na: 1")], Err("not one YAML"));
    check(
        "{}",
        &[(None, "a: 1\n---\nb: hunter2")],
        Err("not one YAML"),
    );
    let long = "hunter2".repeat(MAX_VALUE_BYTES / 7 + 1);
    check("{}", &[(Some("a"), &long)], Err("larger than 65536 bytes"));
    let bytes = merge(b"{}", &[source(Some("a"))], &[vec![0xff]]);
    assert!(bytes.unwrap_err().to_string().contains("not UTF-8"));
}

#[test]
fn only_the_same_key_and_revision_open_settings() {
    let key = SettingsKey::new(&[7; KEY_BYTES]);
    let settings = key.protect("cluster/a/1-x", *br#"{"token":"hunter2"}"#);
    let sealed = settings.sealed.clone();
    assert!(!sealed.contains("hunter2") && !format!("{settings:?}{key:?}").contains("hunter2"));
    assert_eq!(key.open("cluster/a/1-x", &sealed), Ok(settings.clone()));
    assert_eq!(key.open("cluster/a/2-x", &sealed), Err(Unreadable));
    let other = SettingsKey::new(&[8; KEY_BYTES]);
    assert_eq!(other.open("cluster/a/1-x", &sealed), Err(Unreadable));
    for bad in ["", "v1:", "v1:AAAA", "v2:AAAA", "v1:%"] {
        assert_eq!(key.open("cluster/a/1-x", bad), Err(Unreadable));
    }
    let mut forged = sealed.clone().into_bytes();
    let last = forged.len() - 3;
    forged[last] ^= 1;
    let forged = String::from_utf8(forged).unwrap();
    assert_eq!(key.open("cluster/a/1-x", &forged), Err(Unreadable));
}

#[test]
fn hashes_follow_settings_and_depend_on_the_key() {
    let (key, other) = (SettingsKey::new(&[7; 32]), SettingsKey::new(&[8; 32]));
    let of = |key: &SettingsKey, json: &str| key.protect("cluster/a/1-x", json.as_bytes());
    assert_eq!(of(&key, "{}"), of(&key, "{}"));
    let changed = of(&key, r#"{"a":1}"#);
    assert!(changed.version != of(&key, "{}").version && changed.salt != of(&key, "{}").salt);
    let foreign = of(&other, "{}");
    assert!(foreign.version != of(&key, "{}").version && foreign.salt != of(&key, "{}").salt);
    // The version is shown, and must not be the salt.
    let salt: String = changed.salt.iter().map(|b| format!("{b:02x}")).collect();
    assert!(!salt.starts_with(&changed.version));
}
