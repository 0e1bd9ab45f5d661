//! Settings that come from Secrets.

use assent_api::settings::{SecretKeyRef, SettingsKey};

use super::*;

/// Values of one Secret.
struct Values(Result<&'static str, &'static str>);

#[async_trait]
impl ReadSettings for Values {
    async fn read(
        &self,
        namespace: Option<&str>,
        sources: &[SettingsSource],
    ) -> Result<Vec<Vec<u8>>, String> {
        assert_eq!((namespace, sources.len()), (Some("team"), 1));
        let value = self.0.map_err(str::to_owned)?;
        Ok(vec![value.as_bytes().to_vec()])
    }
}

/// A job with a setting that comes from a Secret with this value.
fn with_secret(job: Job, value: Result<&'static str, &'static str>) -> Job {
    Job {
        settings_from: vec![SettingsSource {
            secret_key_ref: SecretKeyRef {
                name: "db".into(),
                key: "token".into(),
            },
            path: Some("auth.token".into()),
        }],
        settings_access: Some(SettingsAccess {
            reader: Arc::new(Values(value)),
            key: SettingsKey::new(&[7; 32]),
        }),
        ..job
    }
}

#[tokio::test]
async fn module_is_vetted_with_the_values_of_secrets() {
    let mut harness = Harness::start(Registry::new(&[("policy", module(1, 64))])).await;
    let job = mk_job("team", "a", harness.url("policy"));
    harness.start_job(with_secret(job, Ok("hunter2")));
    let module = harness.outcome().await.result.unwrap();
    let secret = module.secret_settings.as_ref().unwrap();
    assert_eq!(&*secret.json, br#"{"auth":{"token":"hunter2"},"name":"a"}"#);
    assert!(!format!("{module:?}").contains("hunter2"));
    let mut orders = std::fs::read_dir(harness.dir.path().join("orders")).unwrap();
    let order = std::fs::read(orders.next().unwrap().unwrap().path()).unwrap();
    let order = String::from_utf8_lossy(&order);
    assert!(order.contains("hunter2") && order.contains(r#""confidential":true"#));
}

#[tokio::test]
async fn settings_that_cannot_be_read_are_retried() {
    let mut harness = Harness::start(Registry::new(&[("policy", module(1, 64))])).await;
    let url = harness.url("policy");
    let mk = || mk_job("team", "a", url.clone());
    let without_key = Job {
        settings_access: None,
        ..with_secret(mk(), Ok("hunter2"))
    };
    let twice = Job {
        settings: Arc::from(*br#"{"auth":{"token":"x"}}"#),
        ..with_secret(mk(), Ok("hunter2"))
    };
    for (job, expected) in [
        (with_secret(mk(), Err("it is gone")), "it is gone"),
        (without_key, "no key to encrypt"),
        (twice, "spec.settingsFrom[0]: a setting is given twice"),
    ] {
        harness.start_job(job);
        let failed = harness.outcome().await.result.unwrap_err();
        assert_eq!(failed.refusal.reason, RefusalReason::SettingsUnavailable);
        let message = &failed.refusal.message;
        assert!(message.contains(expected), "{message}");
        assert!(failed.retryable && !message.contains("hunter2"));
    }
}
