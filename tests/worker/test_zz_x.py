from __future__ import annotations
import asyncio
from typing import Any
import pytest
from stowhand.budget import Budget
from stowhand.conditions import Where
from stowhand.events import *
from stowhand.handler import *
from stowhand.handler import handler_of
from stowhand.job import Job, State, NewJob
from stowhand.options import WorkerOptions
from stowhand.testing import FakeClock
from stowhand.worker import Worker
from tests.worker.stage import FaultyStore, at_work, nothing, taking
from tests.worker.test_hooks import Recorder

async def test_conditions_refused():
    r = Recorder(); r.answers=[Where("priority","<=",5)]
    store=FaultyStore(FakeClock())
    async with at_work(r, store=store, clock=store.time, jobs=[NewJob(task="a",priority=9)]) as st:
        assert st.store.rows()[0].state is State.QUEUED

async def test_max_jobs_claimable():
    clock=FakeClock(); r=Recorder(taking(clock,1)); r.answers=[Claimable(limit=10)]*50
    async with at_work(r, clock=clock, concurrency=10, max_jobs=3, jobs=[NewJob(task="a")]*20) as st:
        await st.ended()
        assert [x.state for x in st.store.rows()].count(State.COMPLETED)==3

async def test_slot_held_while_settling():
    clock=FakeClock(); n=0; most=0
    r=Recorder(taking(clock,1))
    async def before(ctx,rec):
        nonlocal n,most
        n+=1; most=max(n,most)
    async def after(ctx,rec):
        nonlocal n
        n-=1
    r.pre_handle,r.post_handle=before,after
    store=FaultyStore(clock)
    async with at_work(r, store=store, clock=clock, concurrency=2, jobs=[NewJob(task="a")]*8) as st:
        store.gates["settle"]=asyncio.Event()
        await clock.advance(5)
        m=most
        store.gates["settle"].set()
        await clock.advance(5)
        assert m==2

async def test_pre_claim_cancelled():
    clock=FakeClock()
    class R(Recorder):
        async def pre_claim(self,ctx):
            self.asked.append(ctx)
            if len(self.asked)==1:
                raise asyncio.CancelledError
            return True
    async with at_work(R(), clock=clock, poll_interval=1.0) as st:
        await st.add()
        await clock.advance(5)
        assert not st.ending.done()
        assert (await st.job(1)).state is State.COMPLETED

async def test_post_swallows():
    clock=FakeClock()
    r=Recorder()
    gate=asyncio.Event()
    async def after(ctx,rec):
        while not gate.is_set():
            try: await asyncio.sleep(3600)
            except asyncio.CancelledError: pass
    r.post_handle=after
    try:
        async with at_work(r, clock=clock) as st:
            await st.add(); await clock.advance(1)
            st.worker.stop()
            await st.ended()
    finally:
        gate.set()

async def test_pre_claim_swallows():
    clock=FakeClock()
    gate=asyncio.Event()
    class R(Recorder):
        async def pre_claim(self,ctx):
            for i in range(5):
                try: await asyncio.sleep(3600)
                except asyncio.CancelledError: pass
            return True
    async with at_work(R(), clock=clock) as st:
        st.worker.stop()
        await st.ended()

async def test_post_system_exit():
    clock=FakeClock()
    r=Recorder()
    async def after(ctx,rec): raise SystemExit(3)
    r.post_handle=after
    async with at_work(r, clock=clock) as st:
        await st.does()
        assert st.told(HookFailed)

async def test_post_has_the_grace():
    clock=FakeClock()
    r=Recorder(); done=[]
    async def after(ctx,rec):
        await clock.sleep(12); done.append(1)
    r.post_handle=after
    async with at_work(r, clock=clock, grace=20.0) as st:
        await st.add(); await clock.advance(1)
        st.worker.stop()
        await st.ended()
        assert done

async def test_budget_pairs():
    clock=FakeClock()
    r=Recorder()
    b=Budget(10,cost=lambda j: 20,column="x")
    h=b.around(r)
    h.pre_claim=r.pre_claim
    async with at_work(h, clock=clock) as st:
        await st.does()
        assert r.calls==[]

async def test_sync_handler():
    def h(ctx,rec): return 5
    clock=FakeClock()
    store=FaultyStore(clock); await store.enqueue(NewJob(task="a"))
    await Worker(store,h,WorkerOptions(once=True),clock=clock).run()
    print(store.rows()[0].last_error)

async def test_future_handler():
    def h(ctx,rec):
        f=asyncio.get_running_loop().create_future(); f.set_result(1); return f
    clock=FakeClock()
    store=FaultyStore(clock); await store.enqueue(NewJob(task="a"))
    await Worker(store,h,WorkerOptions(once=True),clock=clock).run()
    print(store.rows()[0].last_error, store.rows())

async def test_arity():
    async def h(rec): return 5
    clock=FakeClock()
    store=FaultyStore(clock); await store.enqueue(NewJob(task="a"))
    await Worker(store,h,WorkerOptions(once=True),clock=clock).run()
    print(store.rows()[0].last_error)

@pytest.mark.parametrize("bad", [{"concurrency":4}, 5, "x"])
def test_bad_options(bad):
    async def h(a,b): ...
    try: Worker(FaultyStore(FakeClock()),h,bad)
    except Exception as e: print(type(e),e)
@pytest.mark.parametrize("bad", [None, "postgresql://x", FaultyStore])
def test_bad_store(bad):
    async def h(a,b): ...
    try: Worker(bad,h)
    except Exception as e: print(type(e),e)
@pytest.mark.parametrize("bad", [dict(tasks="abc"),dict(backoff=5),dict(once="no"),dict(tasks=["a"]),dict(tasks=[1])])
def test_bad_opts(bad):
    try: print(WorkerOptions(**bad))
    except Exception as e: print(type(e),e)

async def test_active_while_away():
    clock=FakeClock(); store=FaultyStore(clock); store.down={"claim","abandon","beat","next_due"}
    async with at_work(nothing, clock=clock, store=store, max_active_time=10.0) as st:
        t=await st.ended(); print(t)

async def test_dec_budget():
    from decimal import Decimal
    clock=FakeClock()
    b=Budget(10,cost=lambda j: Decimal(2),column="x")
    h=b.around(nothing2)
    h.pre_claim=lambda ctx: true()
    async with at_work(h, clock=clock) as st:
        j=await st.does(); print(j.state,j.last_error)
        assert j.state is State.COMPLETED
async def true(): return True
async def nothing2(c,r): ...
