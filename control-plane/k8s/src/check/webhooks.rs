//! Webhook configurations: do they trust the authority, and does something answer them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    discovery::v1::EndpointSlice,
};

use super::{Area, Finding, MAX_ROWS, Verdict};
use crate::admission::configurations::{DEFAULTS, INJECTOR, VALIDATING};

/// The configurations that Assent has made.
pub(super) struct Seen<'a> {
    /// Each webhook's configuration and where it points.
    hooks: Vec<(&'a str, &'a WebhookClientConfig)>,
}

// === impl Seen ===

impl<'a> Seen<'a> {
    pub(super) fn new(
        validating: &'a [ValidatingWebhookConfiguration],
        mutating: &'a [MutatingWebhookConfiguration],
    ) -> Self {
        let mut hooks = Vec::new();
        for object in validating {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let own = object.webhooks.iter().flatten();
            hooks.extend(own.map(|hook| (name, &hook.client_config)));
        }
        for object in mutating {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let own = object.webhooks.iter().flatten();
            hooks.extend(own.map(|hook| (name, &hook.client_config)));
        }
        Self { hooks }
    }

    /// Whether all are there and trust `bundle`.
    pub(super) fn check(&self, bundle: Option<&str>) -> Vec<Finding> {
        let names: BTreeSet<&str> = self.hooks.iter().map(|(name, _)| *name).collect();
        let mut findings = Vec::new();
        for own in [VALIDATING, DEFAULTS, INJECTOR] {
            if !names.contains(own) {
                let text = format!("the webhook configuration {own} is missing");
                let remedy = "the leader creates it: check the control plane's log";
                findings.push(Finding::new(Area::Webhooks, Verdict::Problem, text, remedy));
            }
        }
        let Some(bundle) = bundle else {
            return findings;
        };
        let trusts = |config: &WebhookClientConfig| {
            let own = config.ca_bundle.as_ref().map(|bytes| bytes.0.as_slice());
            own.is_some_and(|own| own.trim_ascii() == bundle.trim().as_bytes())
        };
        let others = self.hooks.iter().filter(|(_, config)| !trusts(config));
        let others: BTreeSet<&str> = others.map(|(name, _)| *name).collect();
        for name in others.iter().take(MAX_ROWS) {
            let text = format!(
                "the webhook configuration {name} trusts other certificates than those of the ConfigMap assent-ca"
            );
            let remedy = "the leader repairs it within moments; if not, check its log";
            findings.push(Finding::new(Area::Webhooks, Verdict::Problem, text, remedy));
        }
        if findings.is_empty() {
            let count = names.len();
            let text = format!("{count} webhook configurations trust the certificate authority");
            findings.push(Finding::good(Area::Webhooks, text));
        }
        findings
    }

    /// Whether every Service that they name has a pod that is ready.
    pub(super) fn check_endpoints(
        &self,
        slices: &[EndpointSlice],
        namespace: &str,
    ) -> Vec<Finding> {
        let mut ready: BTreeMap<&str, usize> = BTreeMap::new();
        for slice in slices {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|all| all.get("kubernetes.io/service-name"));
            let serving = slice.endpoints.iter().flatten().filter(|endpoint| {
                let conditions = endpoint.conditions.as_ref();
                conditions.and_then(|c| c.ready).unwrap_or(true)
            });
            if let Some(service) = service {
                *ready.entry(service).or_default() += serving.count();
            }
        }
        let services = self
            .hooks
            .iter()
            .filter_map(|(_, config)| config.service.as_ref());
        let services = services.filter(|service| service.namespace == namespace);
        let services: BTreeSet<&str> = services.map(|service| service.name.as_str()).collect();
        services
            .into_iter()
            .map(|service| match ready.get(service).copied().unwrap_or(0) {
                0 => Finding::new(
                    Area::Webhooks,
                    Verdict::Problem,
                    format!("the Service {service} has no pod that is ready: requests that its webhooks intercept fail"),
                    format!("kubectl get pods -n {namespace}, and the events of those that are not ready"),
                ),
                count => Finding::good(
                    Area::Webhooks,
                    format!("the Service {service} has {count} ready pods"),
                ),
            })
            .collect()
    }
}
