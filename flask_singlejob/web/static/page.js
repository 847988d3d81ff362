// Times in the viewer's zone, and a look at the server every few seconds while the page is seen.
// The page is whole without it.
(() => {
  "use strict";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  const pad = (number) => String(number).padStart(2, "0");

  function localText(moment) {
    const date = `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
    const clock = `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
    const now = new Date();
    return moment.toDateString() === now.toDateString() ? clock : `${date} ${clock}`;
  }

  function localise(root) {
    for (const element of root.querySelectorAll("time[data-local]")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.getTime()) || moment.getTimezoneOffset() === 0) continue;
      const text = `${localText(moment)} ${zone}`;
      element.title = text;
      if (element.nextElementSibling?.classList.contains("local")) continue;
      const note = document.createElement("span");
      note.className = "local";
      note.textContent = `${localText(moment)} here`;
      element.after(note);
    }
    const line = document.getElementById("zone");
    if (line && new Date().getTimezoneOffset() !== 0) {
      line.textContent = `Times are UTC; those marked “here” are ${zone}.`;
    }
  }

  // A picture is one image to a screen reader; a click on a bar opens its run all the same.
  document.addEventListener("click", (event) => {
    const bar = event.target.closest?.("[data-run]");
    const link = document.querySelector(".brand");
    if (bar && link) {
      window.location.href = `${link.href.replace(/\/?$/, "/")}run?id=${encodeURIComponent(bar.dataset.run)}`;
    }
  });

  localise(document);
  // Where a picture has no room, its newest end is what to begin with.
  for (const picture of document.querySelectorAll(".picture")) picture.scrollLeft = picture.scrollWidth;

  const seconds = Number(document.body.dataset.live);
  if (!seconds) return;
  let timer = null;
  let on = true;
  const notice = document.getElementById("notice");

  const button = document.createElement("button");
  button.id = "live";
  button.type = "button";
  button.textContent = "Live";
  button.title = `Looks at the server every ${seconds} s while this page is seen`;
  button.setAttribute("aria-pressed", "true");
  document.querySelector(".top .wide").append(button);
  button.addEventListener("click", () => {
    on = !on;
    button.setAttribute("aria-pressed", String(on));
    if (on) look();
    else window.clearTimeout(timer);
  });

  function say(text) {
    if (notice.textContent !== text) notice.textContent = text;
    notice.hidden = !text;
  }

  function placeOf(element) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    return href ? `${element.tagName}[href="${CSS.escape(href)}"]` : null;
  }

  function exchange(page) {
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh) continue;
      const selection = window.getSelection();
      const reading = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
      if (reading) continue;
      const focused = part.contains(document.activeElement) ? placeOf(document.activeElement) : null;
      const scrolled = [...part.querySelectorAll(".scroll, pre")].map((box) => [box.scrollLeft, box.scrollTop]);
      localise(fresh);
      if (fresh.innerHTML === part.innerHTML) continue;
      part.replaceChildren(...document.importNode(fresh, true).childNodes);
      [...part.querySelectorAll(".scroll, pre")].forEach((box, place) => {
        if (scrolled[place]) [box.scrollLeft, box.scrollTop] = scrolled[place];
      });
      if (focused) part.querySelector(focused)?.focus({ preventScroll: true });
    }
  }

  async function look() {
    window.clearTimeout(timer);
    if (!on || document.hidden) return;
    try {
      const address = new URL(window.location.href);
      address.searchParams.delete("done");
      const answer = await fetch(address, { credentials: "same-origin", cache: "no-store" });
      if (answer.redirected || answer.status === 401 || answer.status === 403) {
        say("You are no longer let in: load the page again.");
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok && document.getElementById("away") && !page.getElementById("away")) {
        window.location.reload();
        return;
      }
      if (answer.ok || page.getElementById("away")) exchange(page);
      const time = new Date().toLocaleTimeString();
      say(answer.ok || document.getElementById("away") ? "" : `The last look at ${time} failed: ${page.title || answer.status}. This is what was known before.`);
    } catch {
      say("The server does not answer. This is what was known before.");
    }
    timer = window.setTimeout(look, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) window.clearTimeout(timer);
    else look();
  });
  timer = window.setTimeout(look, seconds * 1000);
})();
