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
    /// As the guest gets it.
    request: Box<RawValue>,
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
        let envelope: Envelope<'_> = serde_json::from_slice(REVIEW)?;
        let raw = Self {
            policy,
            request: envelope.request.to_owned(),
        };
        raw.call_once()?;
        Ok(raw)
    }

    /// Judges the review once.
    pub(crate) fn call_once(&self) -> anyhow::Result<()> {
        let verdict = self.policy.evaluate(&self.review())?;
        ensure!(
            verdict.allowed,
            "the review is denied: {:?}",
            verdict.message
        );
        Ok(())
    }

    /// All that the host would have read of it.
    fn review(&self) -> Review<'_> {
        Review {
            raw: false,
            operation: "CREATE",
            ..Review::raw(&self.request)
        }
    }

    /// Judges the review over and over. Nothing else may run in this process meanwhile.
    pub(crate) fn call(&self, threads: usize, time: Duration) -> anyhow::Result<Calls> {
        let (before, start) = (machine::cpu(process::id())?, Instant::now());
        let stop = AtomicBool::new(false);
        let count = thread::scope(|scope| {
            let work = || self.until(&stop);
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

    fn until(&self, stop: &AtomicBool) -> anyhow::Result<u64> {
        let mut count = 0;
        while !stop.load(Relaxed) {
            self.call_once()?;
            count += 1;
        }
        Ok(count)
    }
}
