// Renews a page at intervals, except while the user works in it.
(() => {
  const every = Number(document.body.dataset.renew) * 1000;
  if (!every) return;
  const plots = document.getElementById("plots");
  const here = new URL(location.pathname + location.search, location.origin);
  let renewed = Date.now();
  const tell = () => {
    const place = document.getElementById("updated");
    if (place) place.textContent = `${Math.round((Date.now() - renewed) / 1000)} s ago`;
  };
  // A click on any text focuses main itself, which is not yet work in the page.
  const isQuiet = () => !document.hidden && !document.activeElement?.closest("main *") && !String(getSelection());
  const renew = async () => {
    if (isQuiet()) {
      try {
        const answer = await fetch(here, { signal: AbortSignal.timeout(10000) });
        const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
        if (found && isQuiet()) {
          // Without its role, a screen reader does not read a message again that the page had before.
          for (const each of found.querySelectorAll("[data-about]")) {
            const said = `main [data-about=${CSS.escape(each.dataset.about)}]`;
            if (document.querySelector(said)) each.removeAttribute("role");
          }
          // Keep the plots that live.js has drawn. If the page was loaded without them, load it again.
          const drawn = found.querySelector("#plots");
          if (drawn && !plots) location.reload();
          drawn?.replaceWith(plots);
          document.querySelector("main").replaceChildren(...found.childNodes);
          renewed = Date.now();
          tell();
        }
        document.body.classList.toggle("stale", !found);
      } catch {
        document.body.classList.add("stale");
      }
    }
    setTimeout(renew, every);
  };
  setTimeout(renew, every);
  setInterval(tell, 1000);
  tell();
})();
