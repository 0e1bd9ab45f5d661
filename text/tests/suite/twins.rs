//! The example policies: both texts of each give the verdicts that its cases expect.

use serde_json::Value;

use crate::support::{INTERPRETERS, cases, read};

#[test]
fn twins_give_equal_verdicts() {
    for policy in [
        "text/no-privileged",
        "text/require-owner",
        "text/fixed-tag",
        "placement",
    ] {
        for file in ["policy.rego", "policy.cel.yaml"] {
            let text = read(&format!("{policy}/{file}"));
            for case in cases(policy) {
                let request = std::slice::from_ref(&case.request);
                let verdict = INTERPRETERS.validate(file, &text, &case.settings, request);
                let verdict = verdict[0].clone().unwrap();
                let at = format!("{policy}/{file}: {}: {verdict}", case.name);
                assert_eq!(verdict["accepted"], case.expect["allowed"], "{at}");
                assert_eq!(verdict["message"], case.expect["message"], "{at}");
                let patched = case.expect.get("patched");
                assert_eq!(
                    &verdict["mutated_object"],
                    patched.unwrap_or(&Value::Null),
                    "{at}"
                );
            }
        }
    }
}
