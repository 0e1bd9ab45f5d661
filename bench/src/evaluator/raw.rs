//! The call into the sandbox by itself: no network, no parsing.

use std::{
    process,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use assent_wasm::{Engine, Policy, PolicySpec, Review};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{REVIEW, guests::Guest};
use crate::machine;

/// A policy outside of any evaluator.
pub(crate) struct Raw {
    policy: Policy,
}

/// What calling it on some threads gave.
pub(crate) struct Calls {
    /// Of all threads together.
    pub(crate) per_second: f64,
    /// Processor time per call in microseconds.
    pub(crate) cpu_us: f64,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    request: &'a RawValue,
}

// === impl Raw ===

impl Raw {
    /// Prepares the guest as an evaluator does.
    pub(crate) fn prepare(engine: &Engine, guest: &Guest) -> anyhow::Result<Self> {
        let module = engine.compile(&guest.wasm)?;
        let spec = PolicySpec {
            settings_json: guest.settings().into(),
            name: guest.name.to_owned(),
            ..PolicySpec::new(guest.abi)
        };
        let policy = Policy::prepare(engine, &module, spec)?;
        policy.validate_settings()?;
        Ok(Self { policy })
    }

    /// Judges the review over and over. Nothing else may run in this process meanwhile.
    pub(crate) fn call(&self, threads: usize, time: Duration) -> anyhow::Result<Calls> {
        let envelope: Envelope<'_> = serde_json::from_slice(REVIEW)?;
        let review = Review::admission(envelope.request)?;
        let verdict = self.policy.evaluate(&review)?;
        ensure!(
            verdict.allowed,
            "the review is denied: {:?}",
            verdict.message
        );
        let (before, start) = (machine::cpu(process::id())?, Instant::now());
        let stop = AtomicBool::new(false);
        let count = thread::scope(|scope| {
            let work = || self.until(&stop, &review);
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            thread::sleep(time);
            stop.store(true, Relaxed);
            let counts = workers.into_iter().map(|worker| worker.join().ok()?.ok());
            counts.sum::<Option<u64>>()
        });
        let count = count.context("an evaluation failed")? as f64;
        let took = start.elapsed();
        let cpu = machine::cpu(process::id())?.saturating_sub(before);
        Ok(Calls {
            per_second: count / took.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / count,
        })
    }

    fn until(&self, stop: &AtomicBool, review: &Review<'_>) -> anyhow::Result<u64> {
        let mut count = 0;
        while !stop.load(Relaxed) {
            self.policy.evaluate(review)?;
            count += 1;
        }
        Ok(count)
    }
}
