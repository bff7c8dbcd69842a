// What arrives: {title, body, data, badge, sound, url, options}, each only if the notification has it.
self.addEventListener("push", (event) => {
  const { title = "", body, data, badge, url, options } = event.data.json();
  const shown = self.registration.showNotification(title, { ...options, body, data: { ...data, url } });
  const counted = badge === undefined ? undefined : self.navigator.setAppBadge?.(badge);
  event.waitUntil(Promise.all([shown, counted]));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(self.clients.openWindow(event.notification.data.url ?? "/"));
});

// The browser has replaced the subscription: the old one is dead from now on.
self.addEventListener("pushsubscriptionchange", (event) => {
  const again = event.newSubscription ?? self.registration.pushManager.subscribe(event.oldSubscription.options);
  const told = Promise.resolve(again).then((subscription) =>
    fetch("/subscriptions", { method: "POST", body: JSON.stringify(subscription) }),
  );
  event.waitUntil(told);
});
