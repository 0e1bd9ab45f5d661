//! The discovery state of a server, as `ClientStatus` reports it.

use std::time::{Duration, SystemTime};

use assent_controller::{Backend, Controller, Now};
use assent_core::{Version, rollout::PolicyId};
use assent_grpc::status::{ConditionRow, Page, PolicyRow, Query};

/// Answers a query about a server; `None` if there is no such server. `unknown` are rows of
/// policies that the controller does not know.
pub(crate) fn client_status<B: Backend>(
    controller: &mut Controller<B>,
    now: Now,
    query: &Query,
    unknown: Vec<PolicyRow>,
) -> Option<Page> {
    let plane = controller.plane();
    let server = plane.server(&query.server)?;
    let version = server.version();
    // Before anything is published no replica is current: any other version shows that.
    let current = version.unwrap_or_else(unpublished);
    let (replicas, next) = query.select(&server.fleet, current);
    let own = plane.rollouts().filter(|(name, rollout)| {
        ***name == *query.server
            && !rollout.is_deleting()
            && query.wants_policy(rollout.id().key.as_str())
    });
    let ids: Vec<PolicyId> = own.map(|(_, r)| r.id().clone()).collect();
    let rows = ids.iter().filter_map(|id| policy_row(controller, now, id));
    let mut policies: Vec<PolicyRow> = rows.collect();
    policies.extend(unknown);
    policies.sort_by(|a, b| a.policy.cmp(&b.policy));
    Some(Page {
        version,
        replicas,
        policies,
        next,
        now: now.at,
        at: SystemTime::from(now.date),
    })
}

/// The names of the PolicyServers, in order.
pub(crate) fn server_names<B: Backend>(controller: &Controller<B>) -> Vec<String> {
    let servers = controller.plane().servers();
    let mut names: Vec<String> = servers.map(|(name, _)| name.to_string()).collect();
    names.sort_unstable();
    names
}

fn policy_row<B: Backend>(
    controller: &mut Controller<B>,
    now: Now,
    id: &PolicyId,
) -> Option<PolicyRow> {
    let (status, since) = controller.status(now, id)?;
    let conditions = status.conditions.iter().zip(since);
    let conditions = conditions.map(|(condition, since)| ConditionRow {
        r#type: condition.kind.as_str().into(),
        status: condition.status.as_str().into(),
        reason: condition.reason.as_str().into(),
        message: condition.message.clone(),
        observed_generation: status.observed_generation,
        transition: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(since.unsigned_abs())),
    });
    Some(PolicyRow {
        policy: id.key.to_string(),
        active: status.active.map(|a| a.revision.to_string()),
        candidate: status.pending.map(|p| p.revision.to_string()),
        fold: status.fold,
        conditions: conditions.collect(),
    })
}

fn unpublished() -> Version {
    "0".repeat(64).parse().expect("64 zeros must be a version")
}
