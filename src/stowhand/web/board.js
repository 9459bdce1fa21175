// What makes a page live. Nothing needs it: without it every page is whole, and a reload shows what has changed.

const LATER = 10_000; // milliseconds until a stream that was refused is asked for again
const stamp = document.getElementById("stamp");
const held = new Map(); // by id: the newest text of a region that is not to change under somebody's hand
let stream = null;
let isBrief = false; // the stream has ended because this browser has enough of them; it is asked for again
let ahead = stamp ? Date.parse(stamp.dataset.now) - Date.now() : 0; // of this clock: the server's

// -- Times: local ones in the text, with UTC beside it in the title.
// One form for all, the same as in logs and commands: 2030-01-31 17:04:05.
const local = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const UNITS = [["d", 86_400], ["h", 3600], ["m", 60], ["s", 1]];

function span(seconds) {
  const parts = UNITS.map(([unit, size], at) => [Math.floor((at ? seconds % UNITS[at - 1][1] : seconds) / size), unit]);
  const first = parts.findIndex(([number]) => number);
  const told = parts.slice(Math.max(first, 0), first + 2).filter(([number]) => number);
  return told.map((part) => part.join("")).join(" ") || "0s";
}

function ago(at) {
  const seconds = (Date.now() + ahead - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

function tellTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(+at)) continue; // a text that only looks like a moment
    const text = { clock, day, local }[time.dataset.as]?.format(at) ?? ago(at);
    if (time.textContent !== text && !isInHand(time)) time.textContent = text;
    const title = `${local.format(at)} (${time.dateTime.slice(0, 19).replace("T", " ")} UTC)`;
    if (time.title !== title) time.title = title;
  }
}

// -- Regions: replaced where their text differs, element by element where these have ids.
function patched(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  if (old.nodeName !== fresh.nodeName || !fresh.querySelector?.("[id]")) {
    fresh.animate?.([{ backgroundColor: "var(--raised)" }, {}], 1200);
    return fresh;
  }
  const key = (node, at) => node.id || `${node.nodeName} ${at}`;
  const there = new Map([...old.childNodes].map((node, at) => [key(node, at), node]));
  const next = [...fresh.childNodes].map((node, at) => {
    const mine = there.get(key(node, at));
    return mine ? patched(mine, node) : node;
  });
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
  old.replaceChildren(...next);
  return old;
}

// What a hand has opened stays so.
function keep(old, fresh) {
  const isOpen = ({ id }) => old.querySelector(`[id="${CSS.escape(id)}"] > details`)?.open;
  fresh.querySelectorAll("details").forEach((one) => (one.open = isOpen(one.parentNode) ?? one.open));
}

function isInHand(region) {
  const selection = getSelection();
  const selected = selection !== null && !selection.isCollapsed && selection.containsNode(region, true);
  return selected || region.matches(":hover, :focus-within, :has(input:checked)");
}

function show() {
  let waiting = 0;
  for (const [id, fresh] of held) {
    const old = document.getElementById(id);
    if (old && isInHand(old)) waiting += 1;
    else held.delete(id);
    if (!old || held.has(id)) continue;
    tellTimes(old);
    tellTimes(fresh);
    keep(old, fresh);
    const now = patched(old, fresh);
    if (now !== old) old.replaceWith(now);
  }
  say(waiting ? "paused" : "live", waiting ? "Paused while you point at it, or choose" : "Live");
}

function say(state, words) {
  if (!stamp) return;
  stamp.className = state;
  const word = stamp.querySelector("b");
  if (word.textContent !== words) word.textContent = words;
}

// -- The stream: the same address, asked for as events. A hidden tab has none.
function listen() {
  if (stream !== null || document.hidden || !document.querySelector("[data-region]")) return;
  stream = new EventSource(location.href);
  stream.onopen = () => (isBrief = false);
  stream.addEventListener("brief", () => (isBrief = true));
  stream.onmessage = (event) => {
    const fresh = new DOMParser().parseFromString(event.data, "text/html");
    for (const region of fresh.querySelectorAll("[data-region]")) held.set(region.id, region);
    show();
  };
  stream.addEventListener("now", (event) => {
    ahead = Date.parse(event.data) - Date.now();
    stamp?.querySelector("time").setAttribute("datetime", event.data);
    show();
  });
  stream.addEventListener("away", (event) => say("away", event.data));
  stream.onerror = async () => {
    if (isBrief) return void (isBrief = false);
    if (stream.readyState !== EventSource.CLOSED) return say("away", "Not connected"); // it tries again by itself
    leave();
    setTimeout(listen, LATER);
    const page = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
    if ([401, 403].includes(page?.status)) location.reload(); // signed out, maybe in another tab: it says so
    if (page?.status === 404) say("away", "Not there any more"); // a removed job: what it was can still be read
  };
}

function leave() {
  say("away", "Not connected");
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? leave() : listen()));
addEventListener("pagehide", leave);
addEventListener("pageshow", (event) => event.persisted && listen());
setInterval(() => held.size && stamp?.className !== "away" && show(), 300);
setInterval(() => document.hidden || tellTimes(document), 1000);

// -- Copying.
for (const text of document.querySelectorAll(".copy > pre")) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  });
  if (navigator.clipboard) text.after(button);
}

tellTimes(document);
listen();
